package stores

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// combined is an engine with lock and records in one place, and faults in front of both.
type combined struct {
	*testing.T
	engine *idem.Engine
	locker driver.OfferingLocker
	store  driver.LockingStore
	clock  func(context.Context) (time.Time, error)
	client goredis.UniversalClient // in Redis
	locks  *idemtest.FaultyLocker
	faults *idemtest.FaultyStore
	policy idem.Policy
	runs   atomic.Int32
	late   atomic.Pointer[heldBack] // calls that come late

	statements atomic.Int32 // of PostgreSQL

	mu     sync.Mutex
	events map[telemetry.EventType]int
}

// place is where a combined engine has lock and records, in Redis by default.
type place struct {
	url      string
	postgres bool
	ttl      time.Duration // of locks
}

// inEachPlace runs a test on lock and records in Redis and in PostgreSQL.
func inEachPlace(t *testing.T, run func(t *testing.T, p place)) {
	t.Helper()
	for name, p := range map[string]place{"Redis": {}, "PostgreSQL": {postgres: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, p)
		})
	}
}

func newCombined(t *testing.T, p place, opts ...idem.Option) *combined {
	t.Helper()
	c := &combined{T: t, events: make(map[telemetry.EventType]int)}
	ttl := cmp.Or(p.ttl, 10*time.Minute) // a lock that is left behind does not end within a test
	if p.postgres {
		c.inPostgres(ttl)
	} else {
		locker, store, client := inRedis(t, cmp.Or(p.url, testserver.SharedRedis(t)), []redislock.Option{redislock.WithTTL(ttl)})
		c.locker, c.store, c.clock, c.client = locker, store, store.Clock, client
		client.AddHook(redisCalls{c})
	}
	c.locks, c.faults = idemtest.NewFaultyLocker(c.locker), idemtest.NewFaultyStore(c.store)
	engine, err := idem.New(c.locks, c.faults, append([]idem.Option{idem.WithObserver(c.observe)}, opts...)...)
	kit.Fatal(t, err)
	c.engine = engine
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	c.policy, err = idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
	kit.Fatal(t, err)
	c.record("none") // the store learns the time
	return c
}

// inPostgres keeps lock and records in tables of their own.
func (c *combined) inPostgres(ttl time.Duration) {
	c.Helper()
	config, err := pgx.ParseConfig(testserver.SharedPostgres(c))
	kit.Fatal(c, err)
	db := sql.OpenDB(sqlCalls{stdlib.GetConnector(*config), c})
	c.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(8)
	prefix, log := fmt.Sprintf("combined_%x_", rand.Uint32()), slog.New(slog.DiscardHandler)
	kit.Fatal(c, sqlstore.Migrate(c.Context(), db, dialect.PostgreSQL, sqlstore.WithTablePrefix(prefix)))
	store, err := sqlstore.New(c.Context(), db, dialect.PostgreSQL, sqlstore.WithTablePrefix(prefix), sqlstore.WithLogger(log), sqlstore.WithExpiry(0))
	kit.Fatal(c, err)
	c.Cleanup(func() { _ = store.Close() })
	locker, err := sqllock.New(c.Context(), db, dialect.PostgreSQL, sqllock.WithTablePrefix(prefix), sqllock.WithLogger(log), sqllock.WithTTL(ttl))
	kit.Fatal(c, err)
	c.Cleanup(func() { _ = locker.Close(context.Background()) })
	c.locker, c.store, c.clock = locker, store, store.Clock
}

func (c *combined) observe(_ context.Context, ev telemetry.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[ev.Type]++
}

// eventually waits for an event.
func (c *combined) eventually(want telemetry.EventType) {
	c.Helper()
	kit.Eventually(c, fmt.Sprint("event ", want), func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.events[want] == 0 {
			return fmt.Errorf("only %v", c.events)
		}
		return nil
	})
}

func (c *combined) pay(context.Context) (idem.Response, error) {
	return idem.Response{Status: 201, Body: fmt.Appendf(nil, "payment %d", c.runs.Add(1))}, nil
}

func (c *combined) do(key string, h idem.Handler) (idem.Result, error) {
	return c.doAt(c.engine, key, h)
}

func (c *combined) doAt(e *idem.Engine, key string, h idem.Handler) (idem.Result, error) {
	policy := c.policy
	return e.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Scope: "m", Key: idem.Key(key), Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}, h)
}

func id(key string) driver.KeyID { return idem.NewKeyID("m", idem.Key(key)) }

func (c *combined) record(key string) driver.Record {
	c.Helper()
	rec, err := c.store.Get(context.Background(), id(key))
	if err != nil {
		c.Fatalf("Get(%s) = %v", key, err)
	}
	return rec
}

// wantPaid repeats a key until it is paid, and wants that one handler ran in all.
func (c *combined) wantPaid(key string) {
	c.Helper()
	kit.Eventually(c, "a payment of "+key, func() error {
		res, err := c.do(key, c.pay)
		if err == nil && (res.Response.Status != 201 || string(res.Response.Body) != "payment 1") {
			c.Fatalf("Do(%s) = %+v", key, res)
		}
		return err
	})
	if n := c.runs.Load(); n != 1 {
		c.Errorf("%d handlers ran, want 1", n)
	}
	c.wantFree(key)
}

// wantFree wants the lock free, perhaps after a release in the background.
func (c *combined) wantFree(key string) {
	c.Helper()
	kit.Eventually(c, "the lock of "+key, func() error {
		lease, err := c.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: id(key), Nonce: driver.NewNonce()})
		if err == nil {
			lease.ReleaseInBackground()
		}
		return err
	})
}

func (c *combined) wantHeld(key string) {
	c.Helper()
	if _, err := c.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: id(key), Nonce: driver.NewNonce()}); !errors.Is(err, driver.ErrLocked) {
		c.Errorf("TryAcquire(%s) = %v, want %v", key, err, driver.ErrLocked)
	}
}

func (c *combined) wantState(key string, want driver.State) {
	c.Helper()
	if rec := c.record(key); rec.State != want {
		c.Errorf("the record of %s is %+v, want %v", key, rec, want)
	}
}

// wantUnavailable is the answer to a request whose BeginLocked has no answer.
func (c *combined) wantUnavailable(key string) {
	c.Helper()
	if _, err := c.do(key, c.pay); codeOf(err) != "refused unavailable" {
		c.Errorf("Do(%s) = %v, want it unavailable", key, err)
	}
}

// A call to lock and begin without an answer leaves neither a lock nor an attempt, whether it took effect, takes it later, or never.
func TestCombinedBeginWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(c *combined){
		"it was not sent": func(c *combined) {
			c.faults.FailBefore("BeginLocked", 1, nil)
			c.wantUnavailable("k")
			c.eventually(telemetry.EventBeginAborted)
		},
		"its answer is lost": func(c *combined) {
			c.faults.LoseReply("BeginLocked", 1, nil)
			c.wantUnavailable("k")
			c.eventually(telemetry.EventBeginAborted)
			c.wantState("k", driver.StateReleased)
		},
		"and the next two calls fail": func(c *combined) {
			c.faults.LoseReply("BeginLocked", 1, nil)
			c.locks.LoseReply("Offer.Retake", 1, nil)
			c.faults.LoseReply("Abort", 1, nil)
			c.wantUnavailable("k")
			c.eventually(telemetry.EventBeginAborted)
			c.wantState("k", driver.StateReleased)
		},
		"it comes while it is undone": func(c *combined) {
			late, abort := c.holdBack(), c.faults.Slow("Abort", 1)
			c.wantUnavailable("k")
			kit.WaitFor(c, "the undo", abort.Arrived())
			late.deliver()
			c.wantState("k", driver.StateNone)
			abort.Release()
			c.eventually(telemetry.EventBeginAborted)
		},
		"it comes after it was undone": func(c *combined) {
			late := c.holdBack()
			c.wantUnavailable("k")
			c.eventually(telemetry.EventBeginAborted)
			c.wantFree("k")
			late.deliver()
			c.wantState("k", driver.StateReleased)
		},
		"a client library panics": func(c *combined) {
			c.faults.Before("BeginLocked", 1, func() error { panic("hook") })
			c.wantUnavailable("k")
			c.eventually(telemetry.EventBeginAborted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inEachPlace(t, func(t *testing.T, p place) {
				c := newCombined(t, p)
				run(c)
				c.wantFree("k")
				c.wantPaid("k")
			})
		})
	}
}

// A call that comes late does nothing after its last moment, even if nothing was left that undoes it.
func TestCombinedBeginHasALastMoment(t *testing.T) {
	t.Parallel()
	inEachPlace(t, func(t *testing.T, p place) {
		c := newCombined(t, p, idem.WithStoreTimeout(time.Second))
		late := c.holdBack()
		c.locks.FailBefore("Offer.Retake", idemtest.Every, nil)
		c.faults.FailBefore("Abort", idemtest.Every, nil)
		c.wantUnavailable("k")
		sent, err := c.clock(t.Context())
		kit.Fatal(t, err)
		kit.Eventually(t, "the last moment", func() error {
			now, err := c.clock(t.Context())
			if err == nil && now.Sub(sent) < 2*time.Second {
				err = fmt.Errorf("only %v have passed", now.Sub(sent))
			}
			return err
		})
		late.deliver()
		c.wantState("k", driver.StateNone)
		c.locks.Heal("Offer.Retake")
		c.faults.Heal("Abort")
		c.wantPaid("k")
	})
}

// A call that comes before its last moment, when another attempt has taken the place of what the undo left, is undone again.
func TestCombinedBeginThatComesAfterAnotherAttempt(t *testing.T) {
	t.Parallel()
	inEachPlace(t, func(t *testing.T, p place) {
		p.ttl = 5 * time.Second
		c := newCombined(t, p, idem.WithStoreTimeout(2*time.Second))
		late := c.holdBack()
		c.wantUnavailable("k")
		c.eventually(telemetry.EventBeginAborted)
		late.over.Store(true)
		kit.Eventually(t, "another attempt without an effect", func() error {
			_, err := c.do("k", func(context.Context) (idem.Response, error) { return idem.Response{Status: 403}, nil })
			return err
		})
		late.deliver()
		kit.Eventually(t, "a key without an open attempt", func() error {
			if rec := c.record("k"); rec.State.Open() {
				return fmt.Errorf("the record is %+v", rec)
			}
			return nil
		})
		c.wantPaid("k")
	})
}

// The attempt of a call without an answer is undone even if its lock is over, and the next holder has found it first.
func TestCombinedBeginIsUndoneAfterTheNextHolder(t *testing.T) {
	t.Parallel()
	for name, healed := range map[string]bool{"under a later lock": true, "without a lock": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Second
			if healed {
				timeout = time.Minute // it goes on to ask for the lock
			}
			inEachPlace(t, func(t *testing.T, p place) {
				p.ttl = 3 * time.Second
				c := newCombined(t, p, idem.WithStoreTimeout(timeout))
				c.faults.LoseReply("BeginLocked", 1, nil)
				c.locks.FailBefore("Offer.Retake", idemtest.Every, nil)
				c.faults.FailBefore("Abort", idemtest.Every, nil)
				c.wantUnavailable("k")
				kit.Eventually(t, "doubt", func() error { // the lock ends, and the next holder leaves the attempt unknown
					if _, err := c.do("k", c.pay); codeOf(err) != "refused outcome-unknown" {
						return fmt.Errorf("Do() = %w", err)
					}
					return nil
				})
				c.faults.Heal("Abort")
				if healed {
					c.locks.Heal("Offer.Retake")
				}
				c.eventually(telemetry.EventBeginAborted)
				c.wantState("k", driver.StateReleased)
				c.wantPaid("k")
			})
		})
	}
}

// A settlement whose answer is lost stands, and the lock is free.
func TestCombinedSettlementWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(c *combined){
		"it was not sent":         func(c *combined) { c.faults.FailBefore("SettleUnlock", 1, nil) },
		"its answer is lost":      func(c *combined) { c.faults.LoseReply("SettleUnlock", 1, nil) },
		"a client library panics": func(c *combined) { c.faults.Before("SettleUnlock", 1, func() error { panic("hook") }) },
	} {
		for status, state := range map[int]driver.State{201: driver.StateCompleted, 403: driver.StateReleased, 500: driver.StateUnknown} {
			t.Run(fmt.Sprint(name, ", status ", status), func(t *testing.T) {
				t.Parallel()
				inEachPlace(t, func(t *testing.T, p place) {
					c := newCombined(t, p)
					fail(c)
					res, err := c.do("k", func(context.Context) (idem.Response, error) { return idem.Response{Status: status}, nil })
					if err != nil || res.Response.Status != status {
						t.Errorf("Do() = %+v, %v, want status %d", res, err, status)
					}
					c.wantState("k", state)
					c.wantFree("k")
					if n := c.faults.Calls("SettleUnlock"); n != 2 {
						t.Errorf("SettleUnlock was called %d times, want 2", n)
					}
				})
			})
		}
	}
}

// While a settlement is not acknowledged, the heartbeat keeps the lock.
func TestCombinedSettlementThatTakesLong(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	inEachPlace(t, func(t *testing.T, p place) {
		p.ttl = ttl
		c := newCombined(t, p, idem.WithSettleTimeout(50*time.Millisecond))
		c.faults.FailBefore("SettleUnlock", idemtest.Every, nil)
		res, err := c.do("k", c.pay)
		if err != nil || res.Response.Status != 201 {
			t.Fatalf("Do() = %+v, %v, want the handler's answer", res, err)
		}
		for began := time.Now(); time.Since(began) < 2*ttl && !t.Failed(); time.Sleep(20 * time.Millisecond) {
			c.wantHeld("k")
		}
		c.wantState("k", driver.StatePending)
		c.faults.Heal("SettleUnlock")
		c.eventually(telemetry.EventCompleted)
		c.wantPaid("k")
	})
}

// Somebody has settled the attempt first. The client gets what they decided, and the lock is given back.
func TestCombinedSettlementThatIsSuperseded(t *testing.T) {
	t.Parallel()
	inEachPlace(t, func(t *testing.T, p place) {
		c := newCombined(t, p)
		res, err := c.do("k", func(ctx context.Context) (idem.Response, error) {
			_, err := c.store.Settle(ctx, id("k"), driver.Settlement{Attempt: c.record("k").Attempt, ID: driver.NewNonce(), State: driver.StateCompleted,
				Response: &driver.Response{Status: 202}, Decision: driver.Decision{By: "ada", Reason: "the bank says so"}, ResultTTL: time.Hour, KeyTTL: time.Hour})
			kit.Fatal(t, err)
			return idem.Response{Status: 201}, nil
		})
		if err != nil || res.Response.Status != 202 || !res.Replayed {
			t.Errorf("Do() = %+v, %v, want the decision", res, err)
		}
		c.wantFree("k")
	})
}
