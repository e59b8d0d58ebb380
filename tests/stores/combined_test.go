package stores

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// combined is an engine with lock and records in one Redis, and faults in front of both.
type combined struct {
	*testing.T
	engine *idem.Engine
	locker *redislock.Locker
	store  *redisstore.Store
	client goredis.UniversalClient
	locks  *idemtest.FaultyLocker
	faults *idemtest.FaultyStore
	policy idem.Policy
	runs   atomic.Int32

	mu     sync.Mutex
	events map[telemetry.EventType]int
}

// place is where a combined engine has lock and records.
type place struct {
	url   string
	locks []redislock.Option
}

func newCombined(t *testing.T, p place, opts ...idem.Option) *combined {
	t.Helper()
	if p.url == "" {
		p.url = testserver.SharedRedis(t)
	}
	c := &combined{T: t, events: make(map[telemetry.EventType]int)}
	// A lock that is left behind does not end within a test.
	c.locker, c.store, c.client = inRedis(t, p.url, append([]redislock.Option{redislock.WithTTL(10 * time.Minute)}, p.locks...))
	c.locks, c.faults = idemtest.NewFaultyLocker(c.locker), idemtest.NewFaultyStore(c.store)
	engine, err := idem.New(c.locks, c.faults, append([]idem.Option{idem.WithObserver(c.observe)}, opts...)...)
	kit.Fatal(t, err)
	c.engine = engine
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	c.policy, err = idem.Policy{Name: "POST /pay", AllowGlobalKeys: true}.WithDefaults()
	kit.Fatal(t, err)
	c.record("none") // the store learns the time
	return c
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

// heldBack is a hook that keeps the calls to lock and begin from the server, until they are delivered as they are.
type heldBack struct {
	c    *combined
	over atomic.Bool
	mu   sync.Mutex
	args [][]any
}

// holdBack makes the calls come late from now on.
func (c *combined) holdBack() *heldBack {
	c.Helper()
	if _, err := c.do("warm", func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil }); err != nil { // the server learns the script
		c.Fatal(err)
	}
	h := &heldBack{c: c}
	c.client.AddHook(h)
	return h
}

// deliver lets them come.
func (h *heldBack) deliver() {
	h.c.Helper()
	h.over.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.args) == 0 {
		h.c.Fatal("there is no call to deliver")
	}
	for _, args := range h.args {
		if err := h.c.client.Do(context.Background(), args...).Err(); err != nil {
			h.c.Fatalf("%v = %v", args, err)
		}
	}
}

var errHeldBack = errors.New("the call was held back")

// holds reports whether a command is such a call. Only that has as many keys.
func (h *heldBack) holds(cmd goredis.Cmder) bool {
	args := cmd.Args()
	if h.over.Load() || !strings.HasPrefix(cmd.Name(), "eval") || len(args) < 3 || fmt.Sprint(args[2]) < "8" {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.args = append(h.args, args)
	cmd.SetErr(errHeldBack)
	return true
}

func (h *heldBack) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *heldBack) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if h.holds(cmd) {
			return errHeldBack
		}
		return next(ctx, cmd)
	}
}

func (h *heldBack) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if len(cmds) == 1 && h.holds(cmds[0]) {
			return errHeldBack
		}
		return next(ctx, cmds)
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
			c := newCombined(t, place{})
			run(c)
			c.wantFree("k")
			c.wantPaid("k")
		})
	}
}

// A call that comes late does nothing after its last moment, even if nothing of it is left in the record.
func TestCombinedBeginHasALastMoment(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{}, idem.WithStoreTimeout(time.Second))
	late := c.holdBack()
	sent, err := c.store.Clock(t.Context())
	kit.Fatal(t, err)
	c.wantUnavailable("k")
	c.eventually(telemetry.EventBeginAborted)
	late.over.Store(true)
	kit.Eventually(t, "another attempt without an effect", func() error {
		_, err := c.do("k", func(context.Context) (idem.Response, error) { return idem.Response{Status: 403}, nil })
		return err
	})
	kit.Eventually(t, "the last moment", func() error {
		now, err := c.store.Clock(t.Context())
		if err == nil && now.Sub(sent) < 2*time.Second {
			err = fmt.Errorf("only %v have passed", now.Sub(sent))
		}
		return err
	})
	before := c.record("k")
	late.deliver()
	if after := c.record("k"); before.State != driver.StateReleased || after.State != before.State || after.Attempt != before.Attempt {
		t.Errorf("the record was %+v, and is %+v after a late call", before, after)
	}
	c.wantPaid("k")
}

// A call that comes before its last moment, when another attempt has taken the place of what the undo left, is undone again.
func TestCombinedBeginThatComesAfterAnotherAttempt(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{locks: []redislock.Option{redislock.WithTTL(5 * time.Second)}}, idem.WithStoreTimeout(2*time.Second))
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
			c := newCombined(t, place{locks: []redislock.Option{redislock.WithTTL(time.Second)}}, idem.WithStoreTimeout(timeout))
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
				c := newCombined(t, place{})
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
		}
	}
}

// While a settlement is not acknowledged, the heartbeat keeps the lock.
func TestCombinedSettlementThatTakesLong(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	c := newCombined(t, place{locks: []redislock.Option{redislock.WithTTL(ttl)}}, idem.WithSettleTimeout(50*time.Millisecond))
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
}

// Somebody has settled the attempt first. The client gets what they decided, and the lock is given back.
func TestCombinedSettlementThatIsSuperseded(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{})
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
}
