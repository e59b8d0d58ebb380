package stores

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// A server without memory answers what it has, and takes no lock that would have to be undone.
func TestCombinedWithoutMemory(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	c := newCombined(t, place{url: server.URL()})
	c.wantPaid("paid")
	_, err := server.Do("CONFIG", "SET", "maxmemory", "1")
	kit.Fatal(t, err)
	for range 20 {
		if _, err := c.do("fresh", c.pay); codeOf(err) != "refused unavailable" || !errors.Is(err, driver.ErrNoWrites) && !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Do() of a fresh key = %v, want it unavailable", err)
		}
		if res, err := c.do("paid", c.pay); err != nil || !res.Replayed {
			t.Errorf("Do() of a used key = %+v, %v, want its replay", res, err)
		}
	}
	_, err = server.Do("CONFIG", "SET", "maxmemory", "0")
	kit.Fatal(t, err)
	kit.Eventually(t, "a payment", func() error { _, err := c.do("fresh", c.pay); return err })
	kit.Fatal(t, c.engine.Close(t.Context())) // it waits for an undo
	if n := c.locks.Calls("Offer.Retake"); n > 0 {
		t.Errorf("%d refused calls were undone, want none", n)
	}
}

// looking is a store whose combined calls only read, as while it does not know the time.
type looking struct{ driver.LockingStore }

func (l looking) BeginLocked(ctx context.Context, id driver.KeyID, _ driver.BeginRequest, _ driver.OfferedLock) (res driver.LockedBegin, err error) {
	res.Record, err = l.Get(ctx, id)
	return res, err
}

// After a store has refused writes, one request at a time tries again, also if its combined call only reads.
func TestCombinedTriesAgainAfterARefusal(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{})
	store := idemtest.NewFaultyStore(looking{c.store})
	engine, err := idem.New(c.locks, store)
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	store.FailBefore("Begin", 1, fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites))
	if _, err := c.doAt(engine, "k", c.pay); codeOf(err) != "refused unavailable" {
		t.Errorf("Do() = %v, want it unavailable", err)
	}
	kit.Eventually(t, "a payment", func() error { _, err := c.doAt(engine, "k", c.pay); return err })
}

// A server that hangs keeps no request for longer than the time-outs, and the attempts that come late are undone.
func TestCombinedOnAServerThatHangs(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	c := newCombined(t, place{url: server.URL(), ttl: 5 * time.Second}, idem.WithStoreTimeout(200*time.Millisecond), idem.WithLockTimeout(200*time.Millisecond))
	server.Pause()
	for n := range 3 {
		c.wantUnavailable(fmt.Sprint(n))
	}
	server.Resume()
	for n := range 3 {
		kit.Eventually(t, "a payment", func() error { _, err := c.do(fmt.Sprint(n), c.pay); return err })
	}
	if n := c.runs.Load(); n != 3 {
		t.Errorf("%d handlers ran, want 3", n)
	}
}

// The clock of the server jumps ahead by more than a lock lives and a key is remembered, before a payment or during one. No key is paid twice.
func TestCombinedWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]bool{"before a payment": false, "during a payment": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.StartRedis(t, testserver.OnRedisMachine(testserver.NewMachine(t)))
			c := newCombined(t, place{url: server.URL()})
			jump := func(to time.Duration) {
				server.StepClock(to)
				kit.Eventually(t, "the clock", func() error {
					now, err := c.clock(t.Context())
					if off := time.Until(now) - to; err == nil && off.Abs() > time.Minute {
						err = fmt.Errorf("it is off by %v", off)
					}
					return err
				})
			}
			res, err := c.do("k", func(ctx context.Context) (idem.Response, error) {
				if during {
					jump(25 * time.Hour)
				}
				return c.pay(ctx)
			})
			if err != nil || res.Response.Status != 201 {
				t.Fatalf("Do() = %+v, %v, want 201", res, err)
			}
			if !during {
				jump(25 * time.Hour)
			}
			for _, key := range []string{"k", "fresh"} {
				if res, err := c.do(key, c.pay); err == nil && !res.Replayed || err != nil && codeOf(err) != "refused store-lost" {
					t.Errorf("Do(%s) = %+v, %v after a jump, want the replay, or that the store has lost records", key, res, err)
				}
			}
			jump(0)
			_, err = c.store.(*redisstore.Store).AcceptLoss(t.Context())
			kit.Fatal(t, err)
			kit.Eventually(t, "a payment of another key", func() error { _, err := c.do("other", c.pay); return err })
			if n := c.runs.Load(); n != 2 {
				t.Errorf("%d handlers ran, want 2", n)
			}
		})
	}
}

// The clock of the server is set back by an hour, and a process that holds a lock dies. A repeat finds the lock over after its time to live.
func TestCombinedLockWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t, testserver.OnRedisMachine(testserver.NewMachine(t)))
	c := newCombined(t, place{url: server.URL(), ttl: 3 * time.Second})
	fp, err := idem.FingerprintOf("pay")(idem.FingerprintVersion)
	kit.Fatal(t, err)
	kit.Eventually(t, "an attempt without a holder", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		nonce := driver.NewNonce()
		offer, err := c.locker.Offer(ctx, driver.LockRequest{KeyID: id("k"), Nonce: nonce})
		if err != nil {
			return err
		}
		res, err := c.store.BeginLocked(ctx, id("k"), driver.BeginRequest{Route: "POST /pay", Nonce: nonce, Fingerprint: fp}, offer.Lock())
		if err == nil && !res.Begun {
			err = fmt.Errorf("BeginLocked() = %+v", res)
		}
		server.StepClock(-time.Hour) // before the lock is over
		return err
	})
	kit.Eventually(t, "doubt", func() error {
		if _, err := c.do("k", c.pay); codeOf(err) != "refused outcome-unknown" {
			return fmt.Errorf("Do() = %w", err)
		}
		return nil
	})
}

// A record that cannot be read is a matter of its key, and the locks of other keys are not kept from them.
func TestCombinedWithACorruptRecord(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{})
	c.wantPaid("corrupt")
	keys, err := c.client.Keys(t.Context(), "*"+id("corrupt").String()).Result()
	kit.Fatal(t, err)
	for _, key := range keys {
		kit.Fatal(t, c.client.Set(t.Context(), key, strings.Repeat("x", 200), 0).Err())
	}
	for n := range 20 {
		if _, err := c.do("corrupt", c.pay); codeOf(err) != "refused unavailable" && codeOf(err) != "refused outcome-unknown" {
			t.Errorf("Do() with a corrupt record = %v", err)
		}
		if res, err := c.do(fmt.Sprint(n), c.pay); err != nil || res.Replayed {
			t.Errorf("Do() of a fresh key = %+v, %v, want a payment", res, err)
		}
	}
}

// An engine that closes while a call begins an attempt keeps no lock.
func TestCombinedClose(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{})
	_, err := c.do("paid", c.pay)
	kit.Fatal(t, err)
	slow := c.faults.Slow("BeginLocked", 2)
	c.faults.FailBefore("SettleUnlock", idemtest.Every, nil)
	answer := make(chan error, 1)
	go func() {
		_, err := c.do("k", c.pay)
		answer <- err
	}()
	kit.WaitFor(t, "the call", slow.Arrived())
	closed := make(chan error, 1)
	go func() { closed <- c.engine.Close(context.Background()) }()
	kit.Eventually(t, "the end of the engine", func() error {
		if _, err := c.do("paid", c.pay); !strings.Contains(fmt.Sprint(err), "closed") {
			return fmt.Errorf("Do() = %w", err)
		}
		return nil
	})
	slow.Release()
	if err := <-answer; codeOf(err) != "refused unavailable" || c.runs.Load() != 1 {
		t.Errorf("Do() = %v, and %d handlers ran, want it unavailable and the first one", err, c.runs.Load())
	}
	kit.Fatal(t, <-closed)
	c.wantFree("k")
}
