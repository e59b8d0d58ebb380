package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// decide settles an attempt by a decision.
func decide(tb testing.TB, s *Store, id driver.KeyID, a driver.Attempt, state driver.State, d driver.Decision) driver.Settlement {
	tb.Helper()
	st := completion(a, "paid")
	st.ID, st.State, st.Decision = driver.NewNonce(), state, d
	if res, err := s.Settle(tb.Context(), id, st); err != nil || !res.Settled {
		tb.Fatalf("Settle(%v, %v) by %q = %v, %v, want settled", id, state, d.By, res.Settled, err)
	}
	return st
}

// wantDecisions requires decisions of a key, newest first, as "attempt state by reason".
func wantDecisions(tb testing.TB, s *Store, id driver.KeyID, want ...string) []driver.Decided {
	tb.Helper()
	list, err := s.Decisions(tb.Context(), id)
	if err != nil {
		tb.Fatalf("Decisions(%v) = %v, want <nil>", id, err)
	}
	var got []string
	for _, d := range list {
		got = append(got, fmt.Sprintf("%d %v %s %s", d.Attempt, d.State, d.By, d.Reason))
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		tb.Errorf("Decisions(%v) = %q, want %q", id, got, want)
	}
	return list
}

// onServers runs a test on every kind of server.
func onServers(t *testing.T, test func(t *testing.T, client goredis.UniversalClient)) {
	for name, addr := range map[string]func(t *testing.T) string{
		"miniredis":  func(t *testing.T) string { return "redis://" + startMini(t).Addr() },
		"one server": func(t *testing.T) string { return testserver.SharedRedis(t) },
		"cluster":    func(t *testing.T) string { return clusterAddr(testserver.StartRedisCluster(t, 3)) },
	} {
		t.Run(name, func(t *testing.T) { test(t, connect(t, addr(t))) })
	}
}

func TestDecisionsOutliveTheNextAttempt(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, client goredis.UniversalClient) {
		s := open(t, client, WithPrefix(freshPrefix(t)))
		for shard := range Shards {
			id, req := newAttempt(driver.ClientKey)
			id[0] = byte(shard)
			neighbour, other := newAttempt(driver.ClientKey)
			neighbour[0] = byte(shard)
			wantDecisions(t, s, id)

			a := mustBegin(t, s, id, req)
			b := mustBegin(t, s, neighbour, other)
			first := decide(t, s, id, a, driver.StateUnknown, driver.Decision{By: "alice", Reason: "cannot tell\n\x00"})
			decide(t, s, neighbour, b, driver.StateReleased, driver.Decision{By: "carol"})
			second := decide(t, s, id, a, driver.StateReleased, driver.Decision{By: "bob", Reason: "never sent"})
			req.Nonce, req.Fence.Token = driver.NewNonce(), req.Fence.Token+1
			a = mustBegin(t, s, id, req)
			for _, st := range []driver.Settlement{first, second} { // late copies
				if res, err := s.Settle(t.Context(), id, st); err != nil || res.Settled {
					t.Errorf("Settle(%v) of the attempt before = %v, %v, want kept", id, res.Settled, err)
				}
			}
			decide(t, s, id, a, driver.StateCompleted, driver.Decision{By: "alice", Reason: strings.Repeat("r", 512)})

			list := wantDecisions(t, s, id, "2 completed alice "+strings.Repeat("r", 512),
				"1 released bob never sent", "1 unknown alice cannot tell\n\x00")
			rec, err := s.Get(t.Context(), id)
			if err != nil || !list[0].At.Equal(rec.Settled) {
				t.Errorf("Decisions(%v)[0].At = %v, want when it was settled, %v, %v", id, list[0].At, rec.Settled, err)
			}
			wantDecisions(t, s, neighbour, "1 released carol ")
		}
	})
}

// A token that an operator released is issued again; what he decided is that it
// was released.
func TestDecisionOnATokenIsToldAsDecided(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	id, req := newAttempt(driver.IssuedToken)
	if _, err := s.Issue(t.Context(), id, time.Hour); err != nil {
		t.Fatal(err)
	}
	a := mustBegin(t, s, id, req)
	st := decide(t, s, id, a, driver.StateReleased, driver.Decision{By: "alice"})
	if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled {
		t.Errorf("Settle(%v) again = %v, %v, want settled", id, res.Settled, err)
	}
	wantDecisions(t, s, id, "1 released alice ")
}

func TestMachinesAreNotListed(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	for _, by := range []string{"", "resolver", "engine", "marker", "sweeper"} {
		id, req := newAttempt(driver.ClientKey)
		decide(t, s, id, mustBegin(t, s, id, req), driver.StateCompleted, driver.Decision{By: by, Reason: "r"})
		wantDecisions(t, s, id)
		if n := s.client.Exists(t.Context(), s.keys.decisions(redisserver.ShardOf(id))).Val(); n != 0 {
			t.Errorf("Settle() by %q left a list of decisions", by)
		}
	}
}

// A record has a place of a fixed size for each text. A text that is longer changes nothing,
// and neither does a response or a state that no record can have.
func TestWhatARecordCannotHoldIsRefused(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	long := strings.Repeat("x", 256)
	id, req := newAttempt(driver.ClientKey)
	tooLong := req
	tooLong.Route = long
	if _, err := s.Begin(t.Context(), id, tooLong); err == nil {
		t.Error("Begin() of a long route = nil, want an error")
	}
	a := mustBegin(t, s, id, req)
	for _, d := range []driver.Decision{{By: long}, {By: "ops", Reason: strings.Repeat("x", 65536)}} {
		st := driver.Settlement{Attempt: a, ID: driver.NewNonce(), State: driver.StateReleased, ResultTTL: time.Hour, KeyTTL: time.Hour, Decision: d}
		if _, err := s.Settle(t.Context(), id, st); err == nil || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Settle() by %.9q for %.9q = %v, want an error that no retry mends", d.By, d.Reason, err)
		}
	}
	for _, domain := range []string{"", long} {
		if err := s.RetireDomain(t.Context(), domain, driver.Decision{By: "ops"}); err == nil {
			t.Errorf("RetireDomain(%.9q) = nil, want an error", domain)
		}
	}
	if _, err := s.Settle(t.Context(), id, driver.Settlement{Attempt: a, State: driver.StatePending}); err == nil || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Settle() as pending = %v, want an error that no retry mends", err)
	}
	many := &driver.Response{Header: map[string][]string{"X": make([]string, 5000)}}
	if _, err := s.Settle(t.Context(), id, driver.Settlement{Attempt: a, State: driver.StateCompleted, Response: many}); !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Settle() with 5000 values = %v, want %v", err, driver.ErrResponseInvalid)
	}
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StatePending {
		t.Errorf("Get() = %+v, %v, want the attempt as it was", rec, err)
	}
}

// A decision is sent twice, again by the client after a lost reply, and again after another
// person's decision. The list has each decision once.
func TestDecisionsThatAreSentAgainAreListedOnce(t *testing.T) {
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	s := open(t, connect(t, "redis://"+proxy.Addr()))
	for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
		id, req := newAttempt(driver.ClientKey)
		a := mustBegin(t, s, id, req)
		dropped := proxy.DropNextReply(testserver.Contains(id.String()))
		st := decide(t, s, id, a, state, driver.Decision{By: "alice"})
		select {
		case <-dropped:
		default:
			t.Fatal("no reply was lost")
		}
		if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled {
			t.Errorf("Settle(%v) again = %v, %v, want settled", id, res.Settled, err)
		}
		if state != driver.StateUnknown {
			wantDecisions(t, s, id, fmt.Sprintf("1 %v alice ", state))
			continue
		}
		decide(t, s, id, a, state, driver.Decision{By: "bob"})
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Errorf("Settle(%v) after another one = %v, want <nil>", id, err)
		}
		wantDecisions(t, s, id, "1 unknown bob ", "1 unknown alice ")
	}
}

func TestDecisionsAreCapped(t *testing.T) {
	s := open(t, connect(t, testserver.SharedRedis(t)), WithPrefix(freshPrefix(t)))
	var first, last driver.KeyID
	for i := range keptDecisions + 1 {
		id, req := newAttempt(driver.ClientKey)
		id[0] = 5
		decide(t, s, id, mustBegin(t, s, id, req), driver.StateReleased, driver.Decision{By: "alice", Reason: "no " + fmt.Sprint(i)})
		if i == 0 {
			first = id
		}
		last = id
	}
	if n := s.client.LLen(t.Context(), s.keys.decisions(5)).Val(); n != keptDecisions {
		t.Errorf("the shard keeps %d decisions, want %d", n, keptDecisions)
	}
	wantDecisions(t, s, first)
	wantDecisions(t, s, last, fmt.Sprintf("1 released alice no %d", keptDecisions))
}

// A decision that cannot be read is told as such, and nothing of it.
func TestDecisionsOfNewerBuildsAreNotGuessedAt(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	id, _ := newAttempt(driver.ClientKey)
	key := s.keys.decisions(redisserver.ShardOf(id))
	good := "\x01" + string([]byte{byte(driver.StateReleased)}) + packTime(time.Unix(1, 0)) + "\x00\x00\x00\x07" + strings.Repeat("n", 16) + id.String() + "\x03" + "ada" + "why"
	push := func(entry string) {
		s.client.Del(t.Context(), key)
		if err := s.client.LPush(t.Context(), key, entry).Err(); err != nil {
			t.Fatal(err)
		}
	}
	push(good)
	wantDecisions(t, s, id, "7 released ada why")
	push(good[:decidedHeader-1] + "\x00")
	wantDecisions(t, s, id, "7 released  ")
	for name, entry := range map[string]string{
		"nothing": "", "newer version": "\x02" + good[1:], "version 0": "\x00" + good[1:], "cut in the key ID": good[:91],
		"cut in front of the length": good[:92], "no key ID": good[:28] + "x" + good[29:], "cut in the author": good[:decidedHeader+2],
	} {
		push(entry)
		if list, err := s.Decisions(t.Context(), id); err == nil || len(list) > 0 {
			t.Errorf("%s: Decisions() = %v, %v, want an error", name, list, err)
		}
	}
}

func TestSealedIsDeclared(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, client goredis.UniversalClient) {
		s := open(t, client, WithPrefix(freshPrefix(t)))
		want := func(want bool) {
			t.Helper()
			if got, err := s.Sealed(t.Context()); err != nil || got != want {
				t.Errorf("Sealed() = %v, %v, want %v", got, err, want)
			}
		}
		want(false)
		for range 2 {
			if err := s.DeclareSealed(t.Context()); err != nil {
				t.Errorf("DeclareSealed() = %v, want <nil>", err)
			}
			want(true)
		}
		if other, err := open(t, client, WithPrefix(freshPrefix(t)+"-other")).Sealed(context.Background()); err != nil || other {
			t.Errorf("Sealed() of another prefix = %v, %v, want false", other, err)
		}
	})
}
