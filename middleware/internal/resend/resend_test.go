package resend

import (
	"context"
	"math"
	"regexp"
	"testing"
	"testing/synctest"
	"time"
)

// Without time for retries there is one attempt.
func TestNextWithoutTime(t *testing.T) {
	call := Policy{First: time.Millisecond, Most: time.Second}.Start()
	if _, ok := call.Next(t.Context(), Advice{Again: true}); ok {
		t.Error("Next() = true without time, want false")
	}
}

func TestNextGrowsAndIsBounded(t *testing.T) {
	p := Policy{First: 100 * time.Millisecond, Most: time.Second, Elapsed: time.Hour}
	for made, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 5: time.Second, 1 << 20: time.Second} {
		if got := p.backoff(made); got != want {
			t.Errorf("backoff(%d) = %v, want %v", made, got, want)
		}
	}
	call := p.Start()
	for range 1000 {
		if d, ok := call.Next(t.Context(), Advice{Again: true, Asked: 2 * time.Second}); !ok || d < 2*time.Second || d >= 3*time.Second {
			t.Fatalf("Next() = %v, %v, want what was asked and up to a second more", d, ok)
		}
	}
}

func TestNextStopsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{First: time.Second, Most: time.Second, Elapsed: 10 * time.Second}
		call := p.Start()
		began := time.Now()
		for {
			d, ok := call.Next(t.Context(), Advice{Again: true, Asked: time.Second})
			if !ok {
				break
			}
			if err := Wait(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > p.Elapsed || took < p.Elapsed-2*time.Second {
			t.Errorf("retries went on for %v, want a little less than %v", took, p.Elapsed)
		}

		call = p.Start()
		for _, asked := range []time.Duration{11 * time.Second, math.MaxInt64} {
			if _, ok := call.Next(t.Context(), Advice{Again: true, Asked: asked}); ok {
				t.Errorf("Next() = true where the server asks for %v, more time than there is", asked)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, ok := call.Next(ctx, Advice{Again: true, Asked: time.Second}); ok {
			t.Error("Next() = true past the context's deadline")
		}
		cancel()
		if _, ok := call.Next(ctx, Advice{Again: true}); ok {
			t.Error("Next() = true after a cancel")
		}
		if err := Wait(ctx, time.Hour); err == nil {
			t.Error("Wait() = nil after a cancel")
		}
	})
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Errorf("Default().Validate() = %v", err)
	}
	for _, p := range []Policy{
		{},
		{First: 0, Most: 1, Elapsed: 1},
		{First: 2, Most: 1, Elapsed: 1},
		{First: 1, Most: 1, Elapsed: -1},
	} {
		if p.Validate() == nil {
			t.Errorf("Validate(%+v) = nil, want an error", p)
		}
	}
}

func TestKeyIsARandomUUIDOutsideOfExecutions(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	a, err := Key(t.Context(), "n", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Key(t.Context(), "n", nil)
	if a == b || !form.MatchString(a) || err != nil {
		t.Errorf("Key() = %q and %q, %v, want two UUIDs of version 4", a, b, err)
	}
	if err := Gate(t.Context()); err != nil {
		t.Errorf("Gate() = %v, want nil", err)
	}
}

// With the default a call outlasts a server that is restarted while it holds
// the call's lock: refused connections, then "in progress, come back in a
// second" until the session of the dead one is over.
func TestDefaultOutlastsARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 1000 {
			call := Default().Start()
			began := time.Now()
			for {
				var asked time.Duration
				gone := time.Since(began)
				if gone > 17*time.Second {
					break
				}
				if gone > 5*time.Second {
					asked = time.Second
				}
				d, ok := call.Next(t.Context(), Advice{Again: true, Asked: asked})
				if !ok {
					t.Fatalf("given up after %v and %d attempts", time.Since(began), call.made)
				}
				if err := Wait(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
