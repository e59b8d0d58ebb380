package sealed

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// bench is an engine on a sealed store.
type bench struct {
	*testing.T
	engine *idem.Engine
	runs   atomic.Int64
	events chan telemetry.Event
}

func newBench(t *testing.T, s driver.Store) *bench {
	t.Helper()
	b := &bench{T: t, events: make(chan telemetry.Event, 100)}
	var err error
	b.engine, err = idem.New(memorylock.New(), s, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { b.events <- ev }))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// do pays under the one key of these tests.
func (b *bench) do(change func(*idem.Policy)) (idem.Result, error) {
	b.Helper()
	p := idem.Policy{AllowGlobalKeys: true, Name: "pay", InDoubt: idem.LeaveUnknown()}
	if change != nil {
		change(&p)
	}
	p, err := p.WithDefaults()
	if err != nil {
		b.Fatal(err)
	}
	return b.engine.Do(b.Context(), idem.Operation{Key: "key", Policy: &p,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay") },
	}, func(context.Context) (idem.Response, error) {
		b.runs.Add(1)
		return idem.Response(*payment()), nil
	})
}

// close ends the engine, which waits for what goes on in the background.
func (b *bench) close() {
	b.Helper()
	if err := b.engine.Close(b.Context()); err != nil {
		b.Errorf("Close() = %v, want nothing left in the background", err)
	}
	close(b.events)
	for ev := range b.events {
		if ev.Type == telemetry.EventBeginAborted || ev.Type == telemetry.EventFailedOpen {
			b.Errorf("event %v, want none", ev.Type)
		}
	}
}

func code(err error) idem.Code {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r.Code
	}
	return ""
}

// A completed operation whose response cannot be opened is not run again; it is
// worth sending again, and is replayed once the ring is mended.
func TestEngineWithoutTheKey(t *testing.T) {
	inner := memorystore.New()
	first := newBench(t, over(t, inner, ringOf(t, "k2", "k1")))
	if res, err := first.do(nil); err != nil || res.Replayed {
		t.Fatalf("Do() = %+v, %v, want it done", res, err)
	}
	first.close()

	broken := newBench(t, over(t, inner, ringOf(t, "k1")))
	_, err := broken.do(nil)
	if r, ok := errors.AsType[*idem.Refusal](err); !ok || r.Code != idem.CodeUnavailable || r.RetryAfter == 0 || !errors.Is(err, ErrUnreadable) {
		t.Errorf("Do() without the key = %v, want it unavailable, and why", err)
	}
	broken.close()

	mended := newBench(t, over(t, inner, ringOf(t, "k1", "k2")))
	if res, err := mended.do(nil); err != nil || !res.Replayed || string(res.Response.Body) != string(payment().Body) {
		t.Errorf("Do() with the key again = %+v, %v, want the replay", res, err)
	}
	mended.close()
	if n := broken.runs.Load() + mended.runs.Load(); n != 0 {
		t.Errorf("the handler ran %d times more, want once in all", n)
	}
}

// An instance that knows nothing of sealing does not answer with ciphertext.
func TestEngineThatKnowsNothingOfSealing(t *testing.T) {
	inner := memorystore.New()
	first := newBench(t, over(t, inner, ringOf(t, "k1")))
	if _, err := first.do(nil); err != nil {
		t.Fatal(err)
	}
	first.close()
	unaware := newBench(t, inner)
	if res, err := unaware.do(nil); code(err) != idem.CodeResultUnavailable {
		t.Errorf("Do() without the package = %+v, %v, want %s", res, err, idem.CodeResultUnavailable)
	}
	unaware.close()
}

// blind lets Get see nothing once: the record came to be behind its back.
type blind struct {
	driver.Store
	looks atomic.Int64
}

func (s *blind) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if s.looks.Add(1) == 1 {
		return driver.Record{}, nil
	}
	return s.Store.Get(ctx, id)
}

// Begin that finds a response which cannot be opened neither leaves the lock
// behind nor lets the route fail open.
func TestEngineThatBeginsTooLate(t *testing.T) {
	inner := memorystore.New()
	first := newBench(t, over(t, inner, ringOf(t, "k2")))
	if _, err := first.do(nil); err != nil {
		t.Fatal(err)
	}
	first.close()
	late := newBench(t, &blind{Store: over(t, inner, ringOf(t, "k1"))})
	if res, err := late.do(func(p *idem.Policy) { p.FailOpen = true }); code(err) != idem.CodeResultUnavailable {
		t.Errorf("Do() = %+v, %v, want %s", res, err, idem.CodeResultUnavailable)
	}
	late.close()
	if n := late.runs.Load(); n != 0 {
		t.Errorf("the handler ran %d times more, want once in all", n)
	}
}

// An unknown outcome does not need its response: nothing fails open on it, and a
// resolver can settle it.
func TestEngineWithAnUnknownOutcome(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		inner := memorystore.New()
		written := over(t, inner, ringOf(t, "k2"))
		id, req := idem.NewKeyID("", "key"), driver.BeginRequest{Route: "pay", Nonce: driver.NewNonce()}
		fp, err := idem.NewFingerprint(idem.FingerprintVersion, "pay")
		if err != nil {
			t.Fatal(err)
		}
		locker := memorylock.New()
		lease, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: req.Nonce})
		if err != nil {
			t.Fatal(err)
		}
		req.Fence, req.Fingerprint = lease.Fence(), fp
		res, err := written.Begin(t.Context(), id, req)
		if err != nil || !res.Begun {
			t.Fatalf("Begin() = %+v, %v, want begun", res, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := written.Settle(t.Context(), id, settlement(res.Record.Attempt, driver.StateUnknown, payment())); err != nil {
			t.Fatal(err)
		}

		b := newBench(t, over(t, inner, ringOf(t, "k1")))
		if res, err := b.do(func(p *idem.Policy) { p.FailOpen = failOpen }); code(err) != idem.CodeOutcomeUnknown {
			t.Errorf("Do() = %+v, %v, want %s", res, err, idem.CodeOutcomeUnknown)
		}
		b.close()

		b = newBench(t, over(t, inner, ringOf(t, "k1")))
		b.engine, err = idem.New(locker, over(t, inner, ringOf(t, "k1"))) // the domain of the attempt
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.do(func(p *idem.Policy) {
			p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
				return idem.Applied(idem.Response(*payment())), nil
			})
		})
		if err != nil || !got.Replayed || string(got.Response.Body) != string(payment().Body) {
			t.Errorf("Do() with a resolver = %+v, %v, want what it says", got, err)
		}
		b.close()
		if n := b.runs.Load(); n != 0 {
			t.Errorf("the handler ran %d times more, want not at all", n)
		}
	}
}
