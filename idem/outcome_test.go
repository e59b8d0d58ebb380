package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// TestOutcomes is the table of design.md, section 6.
func TestOutcomes(t *testing.T) {
	http := func(want driver.State, statuses ...int) map[int]driver.State {
		m := map[int]driver.State{}
		for _, s := range statuses {
			m[s] = want
		}
		return m
	}
	for _, tt := range []struct {
		transport idem.Transport
		gated     bool
		want      map[int]driver.State
	}{
		{idem.TransportHTTP, false, http(driver.StateCompleted, 200, 201, 204, 302, 400, 402, 404, 409, 410, 422, 451)},
		{idem.TransportHTTP, true, http(driver.StateCompleted, 200, 400, 402, 404, 422)},
		{idem.TransportHTTP, false, http(driver.StateReleased, 401, 403, 425, 429)},
		{idem.TransportHTTP, true, http(driver.StateUnknown, 401, 403, 425, 429)},
		{idem.TransportHTTP, false, http(driver.StateUnknown, 408, 499, 500, 502, 503, 504, 599, 0, 101)},
		{idem.TransportGRPC, false, http(driver.StateCompleted, 0, 3, 5, 6, 9, 11, 12)},
		{idem.TransportGRPC, false, http(driver.StateReleased, 7, 8, 16)},
		{idem.TransportGRPC, true, http(driver.StateUnknown, 7, 8, 16)},
		{idem.TransportGRPC, false, http(driver.StateUnknown, 1, 2, 4, 10, 13, 14, 15, 99)},
		{idem.TransportDirect, false, http(driver.StateCompleted, 0, 500)},
	} {
		for status, want := range tt.want {
			t.Run(fmt.Sprintf("transport %d status %d gated %t", tt.transport, status, tt.gated), func(t *testing.T) {
				b := setup(t, parts{})
				op := b.operation("k", "a")
				op.Transport = tt.transport
				res, err := b.engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
					if tt.gated {
						derived(ctx, t, "capture")
					}
					return idem.Response{Status: status}, nil
				})
				if want == driver.StateUnknown && !decidesNothing(tt.transport, status) {
					b.wantDoubt(err, "k", 0)
				} else if err != nil || res.Response.Status != status || res.Replayed {
					t.Fatalf("Do() = %v, %v, want its own answer", res, err)
				}
				b.wantState("k", want)
				if want == driver.StateUnknown { // no answer of the past, and nothing runs
					_, err = b.engine.Do(context.Background(), op, b.pay)
					b.wantDoubt(err, "k", 0)
					b.wantRuns(0)
				}
			})
		}
	}
}

func TestReleasedKeyRunsAfreshWhateverTheBody(t *testing.T) {
	for _, doubt := range []idem.InDoubt{idem.LeaveUnknown(), idem.RunAgain()} {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = doubt }})
		b.wantAnswer("k", "a", 429)
		b.wantState("k", driver.StateReleased)
		if res := b.wantPayment("k", "b", 1, false); res.Attempt != 2 {
			t.Errorf("attempt = %d, want 2", res.Attempt)
		}
	}
}

// Whoever runs a service learns which outcomes cannot be replayed.
func TestOutcomeWithoutItsResponse(t *testing.T) {
	for _, omitted := range []bool{false, true} {
		b := setup(t, parts{})
		handler := func(context.Context) (idem.Response, error) { return idem.Response{Status: 201, Omitted: omitted}, nil }
		if _, err := b.doWith("k", "a", handler); err != nil {
			t.Error(err)
		}
		if last := b.events[len(b.events)-1]; last.Type != telemetry.EventCompleted || (last.Err != nil) != omitted {
			t.Errorf("omitted %t: the event is %+v, want an error: %t", omitted, last, omitted)
		}
		if _, err := b.do("k", "a"); refusedAs(err, idem.CodeResultUnavailable) != omitted {
			t.Errorf("omitted %t: a repeat = %v", omitted, err)
		}
	}
}

// A declaration that nothing happened counts if nothing that came after it, or beside it, says
// otherwise.
func TestDeclarationsOfNoEffect(t *testing.T) {
	t.Parallel()
	gate := func(ctx context.Context) { _, _ = idem.DownstreamKey(ctx, "bank") }
	asks := func(ctx context.Context) { _, _ = idem.FromContext(ctx) }
	var e *idem.Engine
	misuse := func(ctx context.Context) { e.ReportMisused(ctx, errors.New("a time-out answered")) }
	for name, tt := range map[string]struct {
		steps []func(context.Context)
		err   error
		want  driver.State
	}{
		"no effect":                                 {[]func(context.Context){idem.NoEffect}, nil, driver.StateReleased},
		"no effect after the gate":                  {[]func(context.Context){gate, idem.NoEffect}, nil, driver.StateReleased},
		"no effect before the gate":                 {[]func(context.Context){idem.NoEffect, gate}, nil, driver.StateCompleted}, // as any 404
		"no effect, and middleware answers":         {[]func(context.Context){idem.NoEffect, misuse}, nil, driver.StateUnknown},
		"middleware answers, and no effect":         {[]func(context.Context){misuse, idem.NoEffect}, nil, driver.StateUnknown},
		"not admitted":                              {[]func(context.Context){idem.NotAdmitted}, nil, driver.StateReleased},
		"not admitted after the gate":               {[]func(context.Context){gate, idem.NotAdmitted}, nil, driver.StateUnknown},
		"not admitted with the fence known":         {[]func(context.Context){asks, idem.NotAdmitted}, nil, driver.StateUnknown},
		"not admitted with an error":                {[]func(context.Context){idem.NotAdmitted}, errors.New("relayed"), driver.StateUnknown},
		"not admitted, and middleware answers":      {[]func(context.Context){idem.NotAdmitted, misuse}, nil, driver.StateUnknown},
		"not admitted, after the gate, no effect":   {[]func(context.Context){gate, idem.NotAdmitted, idem.NoEffect}, nil, driver.StateReleased},
		"not admitted after the end of its context": {[]func(context.Context){func(ctx context.Context) { <-ctx.Done() }, idem.NotAdmitted}, nil, driver.StateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = 20 * time.Millisecond }})
			e = b.engine
			_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				for _, step := range tt.steps {
					step(ctx)
				}
				return idem.Response{Status: 404}, tt.err
			})
			b.wantState("k", tt.want)
		})
	}
}

// An immediate retry takes the lock, so it has to be free before the answer. A completed key
// is answered from its record.
func TestReleaseBeforeTheAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		h       idem.Handler
		awaited int
	}{
		"completed": {answers(201), 0},
		"refused":   {answers(429), 1},
		"in doubt":  {answers(500), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			if _, err := b.doWith("k", "a", tt.h); err != nil {
				t.Fatal(err)
			}
			if n := b.locks.Calls("Lease.Release"); n != tt.awaited {
				t.Errorf("the answer waited for %d releases, want %d", n, tt.awaited)
			}
		})
	}
}

// A handler that does not answer leaves the outcome unknown, at once, for the operators. A consumer acknowledges its
// message when Do returns nil, so a repeat must never be nil.
func TestPanicIsInDoubtAndGoesOn(t *testing.T) {
	boom := errors.New("boom")
	for transport, operation := range map[string]func(*bundle, string, string) idem.Operation{"HTTP": (*bundle).operation, "direct": (*bundle).direct} {
		for name, tt := range map[string]struct {
			end  func() error
			want string // how Do ends
		}{
			"panic":  {func() error { panic(boom) }, "panic boom"},
			"Goexit": {func() error { runtime.Goexit(); return nil }, "Goexit"},
			"error":  {func() error { return boom }, "boom"},
		} {
			t.Run(transport+", "+name, func(t *testing.T) {
				b := setup(t, parts{})
				op := operation(b, "k", "{}")
				got := "Goexit"
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() {
						if p := recover(); p != nil {
							got = fmt.Sprint("panic ", p)
						}
					}()
					_, err := b.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{}, tt.end() })
					got = fmt.Sprint(err)
				})
				wg.Wait()
				if !strings.Contains(got, tt.want) {
					t.Errorf("Do() ends with %q, want %q, as its handler", got, tt.want)
				}
				b.wantState("k", driver.StateUnknown)
				for range 2 {
					_, err := b.engine.Do(t.Context(), op, b.pay)
					b.wantDoubt(err, "k", 0)
				}
				b.wantRuns(0)
			})
		}
	}
}
