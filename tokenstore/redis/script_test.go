package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestRoundTrips(t *testing.T) {
	for name, addr := range map[string]func(t *testing.T) string{
		"one server": func(t *testing.T) string { return testserver.SharedRedis(t) },
		"cluster":    func(t *testing.T) string { return clusterAddr(testserver.StartRedisCluster(t, 3)) },
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, addr(t))
			s := open(t, client, WithPrefix(freshPrefix(t)), asksOnce())
			h := new(hook)
			client.AddHook(h)
			call := func(method string, want int64, f func() error) {
				t.Helper()
				before := h.n.Load()
				if err := f(); err != nil {
					t.Fatalf("%s() = %v, want <nil>", method, err)
				}
				if got := h.n.Load() - before; got != want {
					t.Errorf("%s() took %d round trips, want %d", method, got, want)
				}
			}
			exercise := func(shard int, call func(string, int64, func() error)) {
				id, req := newAttempt(driver.ClientKey)
				id[0] = byte(shard)
				var a driver.Attempt
				call("Get of nothing", 1, func() error { _, err := s.Get(t.Context(), id); return err })
				call("Begin", 1, func() error { res, err := s.Begin(t.Context(), id, req); a = res.Record.Attempt; return err })
				call("Settle", 1, func() error {
					_, err := s.Settle(t.Context(), id, completion(a, strings.Repeat("x", 5000)))
					return err
				})
				call("Get with a large body", 2, func() error { _, err := s.Get(t.Context(), id); return err })
				call("Abort", 1, func() error { return s.Abort(t.Context(), id, req) })
				id[1] ^= 1
				call("Issue", 1, func() error { _, err := s.Issue(t.Context(), id, time.Hour); return err })
			}
			for shard := range Shards { // so that every node knows every script
				exercise(shard, func(method string, _ int64, f func() error) {
					if err := f(); err != nil {
						t.Fatalf("%s() = %v, want <nil>", method, err)
					}
				})
			}
			for shard := range Shards {
				exercise(shard, call)
			}
			if name == "one server" {
				call("Ping", 1, func() error { return s.Ping(t.Context()) })
				id, req := newAttempt(driver.ClientKey)
				mustBegin(t, s, id, req)
				if _, err := s.ListOpen(t.Context(), driver.OpenQuery{Limit: 10}); err != nil { // loads the script
					t.Fatal(err)
				}
				call("Open", 2, func() error { _, err := s.ListOpen(t.Context(), driver.OpenQuery{Limit: 10}); return err })
			}
		})
	}
}

func TestScriptsAreSentAgainAfterAFlush(t *testing.T) {
	r := testserver.StartRedis(t)
	s := open(t, connect(t, r.URL()))
	flush := func() {
		if _, err := r.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		id, req := newAttempt(driver.ClientKey)
		flush()
		a := mustBegin(t, s, id, req)
		flush()
		if res, err := s.Settle(t.Context(), id, completion(a, "")); err != nil || !res.Settled {
			t.Errorf("Settle(%v) = %v, %v, want settled", id, res.Settled, err)
		}
		flush()
		if err := s.Abort(t.Context(), id, req); err != nil {
			t.Errorf("Abort(%v) = %v, want <nil>", id, err)
		}
		id[1] ^= 1
		flush()
		if _, err := s.Issue(t.Context(), id, time.Hour); err != nil {
			t.Errorf("Issue(%v) = %v, want <nil>", id, err)
		}
	}
}

// Each script is applied, its reply is lost, and the client sends it again by
// itself. The answer has to be as if nothing had happened.
func TestLostReplies(t *testing.T) {
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	s := open(t, connect(t, "redis://"+proxy.Addr()))
	direct := open(t, connect(t, r.URL()))
	ctx := t.Context()

	// losing runs call with the reply of the next command on id lost.
	losing := func(t *testing.T, id driver.KeyID, call func() error) {
		t.Helper()
		dropped := proxy.DropNextReply(testserver.Contains(id.String()))
		err := call()
		select {
		case <-dropped:
		default:
			t.Fatal("no reply was lost")
		}
		if err != nil {
			t.Fatalf("the call that lost its first reply = %v, want <nil>", err)
		}
	}
	for range 2 { // the second time the server knows the scripts
		t.Run("issue", func(t *testing.T) {
			id, _ := newAttempt(driver.IssuedToken)
			losing(t, id, func() error {
				rec, err := s.Issue(ctx, id, time.Hour)
				if rec.State != driver.StateIssued {
					t.Errorf("Issue(%v) = %v, want issued", id, rec.State)
				}
				return err
			})
		})
		t.Run("begin", func(t *testing.T) {
			id, req := newAttempt(driver.ClientKey)
			losing(t, id, func() error {
				res, err := s.Begin(ctx, id, req)
				if !res.Begun || res.Record.Attempt.Number != 1 {
					t.Errorf("Begin(%v) = %v at attempt %d, want begun at 1", id, res.Begun, res.Record.Attempt.Number)
				}
				return err
			})
		})
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
			t.Run("settle to "+state.String(), func(t *testing.T) {
				id, req := newAttempt(driver.ClientKey)
				st := completion(mustBegin(t, direct, id, req), strings.Repeat("x", 2000))
				st.State = state
				losing(t, id, func() error {
					res, err := s.Settle(ctx, id, st)
					if !res.Settled || res.Record.State != state {
						t.Errorf("Settle(%v, %v) = %v in state %v, want settled", id, state, res.Settled, res.Record.State)
					}
					return err
				})
			})
		}
		t.Run("abort", func(t *testing.T) {
			id, req := newAttempt(driver.ClientKey)
			mustBegin(t, direct, id, req)
			losing(t, id, func() error { return s.Abort(ctx, id, req) })
			if _, err := direct.Begin(ctx, id, req); !errors.Is(err, driver.ErrStaleFence) {
				t.Errorf("Begin(%v) after Abort = %v, want %v", id, err, driver.ErrStaleFence)
			}
		})
		t.Run("get", func(t *testing.T) {
			id, req := newAttempt(driver.ClientKey)
			mustBegin(t, direct, id, req)
			losing(t, id, func() error {
				rec, err := s.Get(ctx, id)
				if rec.State != driver.StatePending {
					t.Errorf("Get(%v) = %v, want pending", id, rec.State)
				}
				return err
			})
		})
	}
}

// A Begin that is held on the way, given up, aborted, and arrives then.
func TestBeginThatArrivesAfterItsAbort(t *testing.T) {
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	s := open(t, connect(t, "redis://"+proxy.Addr()))
	direct := open(t, connect(t, r.URL()))
	warmID, warm := newAttempt(driver.ClientKey)
	mustBegin(t, s, warmID, warm) // the server knows the script

	id, req := newAttempt(driver.ClientKey)
	hold := proxy.HoldNext(testserver.Contains(id.String()))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // so that a busy machine has sent it
	defer cancel()
	if _, err := s.Begin(ctx, id, req); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("Begin(%v) held on its way = %v, want %v", id, err, driver.ErrUnavailable)
	}
	<-hold.Held()
	if err := direct.Abort(t.Context(), id, req); err != nil {
		t.Fatalf("Abort(%v) = %v, want <nil>", id, err)
	}
	hold.Release()
	if _, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrStaleFence) {
		t.Errorf("Begin(%v) after Abort = %v, want %v", id, err, driver.ErrStaleFence)
	}
	rec, err := direct.Get(t.Context(), id)
	if err != nil || rec.State != driver.StateReleased || rec.Attempt.Number != 0 {
		t.Errorf("Get(%v) = %v at attempt %d, %v, want released at 0", id, rec.State, rec.Attempt.Number, err)
	}
}

// Nothing in Redis tells the key: neither names nor values hold it.
func TestKeysAreNotStored(t *testing.T) {
	r := testserver.StartRedis(t)
	s := open(t, connect(t, r.URL()))
	const key, scope = "order-4711-of-alice", "tenant-of-alice"
	id := idem.NewKeyID(scope, key)
	_, req := newAttempt(driver.ClientKey)
	a := mustBegin(t, s, id, req)
	if _, err := s.Settle(t.Context(), id, completion(a, strings.Repeat("x", 2000))); err != nil {
		t.Fatal(err)
	}
	names, err := r.Do("KEYS", "*")
	if err != nil || len(names) != 3*Shards+2 {
		t.Fatalf("KEYS = %d names, %v, want %d incarnations with their clocks, a record and a body", len(names), err, Shards)
	}
	for _, name := range names {
		value, _ := r.Do("DUMP", name)
		if text := fmt.Sprint(name, value); strings.Contains(text, key) || strings.Contains(text, scope) {
			t.Errorf("%s holds the key: %q", name, text)
		}
	}
}

// An answer that is missing is an error. It says neither that there is no record nor that another one is there.
func TestMissingAnswerIsAnError(t *testing.T) {
	t.Parallel()
	client := connect(t, "redis://"+startMini(t).Addr())
	s := open(t, client)
	id, req := newAttempt(driver.ClientKey)
	a := mustBegin(t, s, id, req)
	client.AddHook(&hook{after: func(cmds []goredis.Cmder) { // as when two servers answer one
		for _, cmd := range cmds {
			switch cmd := cmd.(type) {
			case *goredis.SliceCmd:
				cmd.SetVal(nil)
			case *goredis.StringSliceCmd:
				cmd.SetVal(nil)
			case *goredis.Cmd:
				cmd.SetVal([]any(nil))
			}
		}
	}})
	_, got := s.Get(t.Context(), id)
	_, begun := s.Begin(t.Context(), id, req)
	_, settled := s.Settle(t.Context(), id, completion(a, "paid"))
	for name, err := range map[string]error{"Get": got, "Begin": begun, "Settle": settled} {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() = %v without an answer, want %v", name, err, driver.ErrUnavailable)
		}
	}
}
