package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Over a slow link, large settlements take their turns. So small calls stay within their time-outs, and each
// large one is stored in the end. Before, it took the small calls of its pipeline along, and many large ones
// at once shared the link until none was done in time.
func TestLargeSettlementsLeaveRoomForSmallCalls(t *testing.T) {
	t.Parallel()
	const (
		timeout = 4 * time.Second // of each call
		rate    = 1 << 20
		large   = 16
	)
	body := strings.Repeat("0123456789abcdef", 1<<15) // each takes half a second, and all take eight
	proxy := testserver.StartRedisProxy(t, testserver.StartRedis(t).Addr())
	s := open(t, connect(t, "redis://"+proxy.Addr()))
	call := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return do(ctx)
	}
	settle := func(id driver.KeyID, a driver.Attempt, body string) error {
		return call(func(ctx context.Context) error { _, err := s.Settle(ctx, id, completion(a, body)); return err })
	}
	type begun struct {
		id driver.KeyID
		a  driver.Attempt
	}
	var attempts []begun
	for range large {
		id, req := newAttempt(driver.ClientKey)
		attempts = append(attempts, begun{id, mustBegin(t, s, id, req)})
	}
	proxy.Limit(rate)
	defer proxy.Limit(0)
	var small, big sync.WaitGroup
	var over atomic.Bool
	for range 4 {
		small.Go(func() {
			for !over.Load() {
				id, req := newAttempt(driver.ClientKey)
				if err := call(func(ctx context.Context) error { _, err := s.Begin(ctx, id, req); return err }); err != nil {
					t.Errorf("Begin() of a small payment = %v", err)
				} else if err := settle(id, driver.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce}, "ok"); err != nil {
					t.Errorf("Settle() of a small payment = %v", err)
				}
				time.Sleep(20 * time.Millisecond) // most of the link is for the large ones
			}
		})
	}
	for _, b := range attempts {
		big.Go(func() {
			err := settle(b.id, b.a, body)
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); err = settle(b.id, b.a, body) {
				time.Sleep(20 * time.Millisecond)
			}
			if err != nil {
				t.Errorf("Settle() with a large response = %v, and not stored in a minute", err)
			}
		})
	}
	big.Wait()
	over.Store(true)
	small.Wait()
}

// A script that finds a completed record does not return its large response. The caller gets it all the same.
func TestScriptsThatFindALargeResponse(t *testing.T) {
	t.Parallel()
	s := open(t, connect(t, testserver.StartRedis(t).URL()))
	id, req := newAttempt(driver.ClientKey)
	a, body := mustBegin(t, s, id, req), strings.Repeat("large", 10000)
	if res, err := s.Settle(t.Context(), id, completion(a, body)); err != nil || !res.Settled {
		t.Fatalf("Settle() = %v, %v, want settled", res.Settled, err)
	}
	later := req
	later.Fence.Token++
	later.Nonce = driver.NewNonce()
	begin, err := s.Begin(t.Context(), id, later)
	if err != nil || begin.Begun {
		t.Errorf("Begin() of a completed key = %v, %v", begin.Begun, err)
	}
	another := completion(a, "another")
	another.ID = driver.NewNonce()
	settle, err := s.Settle(t.Context(), id, another)
	if err != nil || settle.Settled {
		t.Errorf("Settle() of a completed key = %v, %v", settle.Settled, err)
	}
	issue, err := s.Issue(t.Context(), id, time.Hour)
	if err != nil {
		t.Errorf("Issue() of a completed key = %v", err)
	}
	for call, r := range map[string]driver.Record{"Begin": begin.Record, "Settle": settle.Record, "Issue": issue} {
		if r.State != driver.StateCompleted || r.Response == nil || string(r.Response.Body) != body {
			t.Errorf("%s() found %v with the response %v, want the stored one", call, r.State, r.Response)
		}
	}
}

// A read of a large response waits for its turn, and no longer than its caller.
func TestReadOfALargeResponseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	client := connect(t, "redis://"+startMini(t).Addr())
	s := open(t, client)
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Settle(t.Context(), id, completion(mustBegin(t, s, id, req), strings.Repeat("large", 100_000))); err != nil || !res.Settled {
		t.Fatalf("Settle() = %v, %v, want settled", res.Settled, err)
	}
	if _, err := s.Get(t.Context(), id); err != nil { // the store knows how large answers are
		t.Fatalf("Get() = %v, want <nil>", err)
	}
	reads, over := make(chan struct{}, 2), make(chan struct{})
	client.AddHook(&hook{after: func(cmds []goredis.Cmder) {
		if len(cmds[0].Args()) > 5 { // record and response
			reads <- struct{}{}
			<-over
		}
	}})
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := s.Get(t.Context(), id); err != nil {
			t.Errorf("Get() that has its turn = %v, want <nil>", err)
		}
	})
	<-reads
	if rec, err := s.Get(short(t), id); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Get() without a turn = %v, %v, want %v", rec.State, err, driver.ErrUnavailable)
	}
	close(over)
	first.Wait()
}
