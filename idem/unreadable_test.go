package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// wantFree requires that the lock of a key becomes free, without a Close.
func (b *bundle) wantFree(key string) {
	b.Helper()
	b.eventually("the lock is free", func() bool {
		lease, err := b.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: idem.NewKeyID("m1", idem.Key(key)), Nonce: driver.NewNonce()})
		if err != nil {
			return false
		}
		return lease.Release(context.Background()) == nil
	})
}

var unreadableRecords = map[string]struct {
	err  error
	code idem.Code
}{
	"newer":   {fmt.Errorf("test: %w: version 2", driver.ErrNewerRecord), idem.CodeUnavailable},
	"corrupt": {fmt.Errorf("test: %w: 7 bytes", driver.ErrCorruptRecord), idem.CodeOutcomeUnknown},
}

func TestUnreadableRecordIsRefusedAndRunsNothing(t *testing.T) {
	for name, tt := range unreadableRecords {
		for _, call := range []string{"Get", "Begin"} {
			t.Run(name+", "+call, func(t *testing.T) {
				b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
				b.faults.FailBefore(call, idemtest.Every, tt.err)
				b.wantRefusal("k", "a", tt.code)
				b.wantRuns(0)
				b.wantFree("k")
				if b.saw(telemetry.EventUnreadable) != 1 || b.saw(telemetry.EventFailedOpen) != 0 || b.faults.Calls("Abort") != 0 {
					t.Errorf("%d events of an unreadable record, want 1; %d of failing open and %d calls of Abort, want none",
						b.saw(telemetry.EventUnreadable), b.saw(telemetry.EventFailedOpen), b.faults.Calls("Abort"))
				}
			})
		}
	}
}

// A record that has become unreadable under its holder ends the retries of Settle.
func TestUnreadableRecordEndsSaving(t *testing.T) {
	for name, tt := range unreadableRecords {
		for when, opts := range map[string][]idem.Option{
			"before the answer": nil,
			"after the answer":  {idem.WithSettleTimeout(time.Nanosecond)},
		} {
			t.Run(name+", "+when, func(t *testing.T) {
				b := setup(t, parts{opts: opts})
				b.faults.FailBefore("Settle", 1, nil)
				for call := range 100 {
					b.faults.FailBefore("Settle", call+2, tt.err)
				}
				b.wantPayment("k", "a", 1, false)
				b.eventually("saving is given up", func() bool { return b.saw(telemetry.EventSettleAbandoned) == 1 })
				b.wantFree("k")
				if n := b.faults.Calls("Settle"); n != 2 || b.saw(telemetry.EventUnstored) != 1 {
					t.Errorf("%d calls of Settle and %d events of an unstored success, want 2 and 1", n, b.saw(telemetry.EventUnstored))
				}
			})
		}
	}
}

func TestUnreadableRecordEndsAborting(t *testing.T) {
	for name, tt := range unreadableRecords {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			b.faults.FailBefore("Begin", 1, nil)
			b.faults.FailBefore("Abort", idemtest.Every, tt.err)
			b.wantRefusal("k", "a", idem.CodeUnavailable)
			b.eventually("aborting is given up", func() bool { return b.saw(telemetry.EventSettleAbandoned) == 1 })
			b.wantFree("k")
			if n := b.faults.Calls("Abort"); n != 1 {
				t.Errorf("%d calls of Abort, want 1", n)
			}
			b.wantRuns(0)
		})
	}
}

// damagedStore cannot read the responses of closed and unknown records.
type damagedStore struct {
	driver.Store
	err error
}

func (s *damagedStore) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if rec.Response != nil {
		rec.Response, rec.ResponseErr = nil, s.err
	}
	return rec, err
}

func TestDamagedResponseIsNotReplayedAndReported(t *testing.T) {
	for name, tt := range map[string]struct {
		handler idem.Handler
		err     error
		code    idem.Code
	}{
		"completed":             {answers(201), driver.ErrResponseDamaged, idem.CodeResultUnavailable},
		"completed, newer form": {answers(201), driver.ErrNewerRecord, idem.CodeUnavailable},
		"unknown":               {answers(500), driver.ErrResponseDamaged, idem.CodeOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
			b.engine = b.another(b.locks, &damagedStore{b.faults, tt.err}, idem.WithObserver(b.observe))
			if _, err := b.doWith("k", "a", tt.handler); err != nil {
				t.Fatal(err)
			}
			_, err := b.do("k", "a")
			b.wantRefused(err, tt.code)
			b.wantRuns(0) // of the default handler
			if !errors.Is(err, tt.err) || b.saw(telemetry.EventUnreadable) != 1 {
				t.Errorf("Do() = %v with %d events of an unreadable response, want %v and 1", err, b.saw(telemetry.EventUnreadable), tt.err)
			}
		})
	}
}

// misbehavingStore answers Settle as no store may.
type misbehavingStore struct {
	driver.Store
	calls  []time.Time
	answer func(driver.Settlement) (driver.SettleResult, error)
}

func (s *misbehavingStore) Settle(_ context.Context, _ driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if len(s.calls) == 1000 { // without a pause no time passes here, and the test would not end
		panic("Settle is called for ever")
	}
	s.calls = append(s.calls, time.Now())
	return s.answer(st)
}

// A store that breaks its contract must neither be asked without a pause, nor for
// ever, nor take the handler's goroutine down.
func TestMisbehavingStoreEndsSaving(t *testing.T) {
	invalid := func(driver.Settlement) (driver.SettleResult, error) {
		return driver.SettleResult{}, driver.ErrResponseInvalid
	}
	open := func(st driver.Settlement) (driver.SettleResult, error) {
		return driver.SettleResult{Record: driver.Record{State: driver.StatePending, Attempt: st.Attempt}}, nil
	}
	for name, answer := range map[string]func(driver.Settlement) (driver.SettleResult, error){
		"every response is invalid": invalid, "an open attempt stays open": open,
	} {
		for _, status := range []int{201, 429, 500} {
			for _, timeout := range []time.Duration{time.Nanosecond, 2 * time.Second} {
				t.Run(fmt.Sprintf("%s, %d, answered after %v", name, status, timeout), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := setup(t, parts{})
						store := &misbehavingStore{Store: b.store, answer: answer}
						b.engine = b.another(b.locks, store, idem.WithObserver(b.observe), idem.WithSettleTimeout(timeout))
						res, err := b.doWith("k", "a", answers(status))
						if err != nil || res.Response.Status != status {
							t.Errorf("Do() = %d, %v, want %d", res.Response.Status, err, status)
						}
						time.Sleep(time.Minute)
						b.wantEvents(telemetry.EventSettleAbandoned, 1)
						n := len(store.calls)
						if took := store.calls[n-1].Sub(store.calls[0]); n > 12 || took < 100*time.Millisecond || took > 10*time.Second {
							t.Errorf("Settle was called %d times within %v, want a few, with pauses", n, took)
						}
						b.wantFree("k")
						if err := b.engine.Close(t.Context()); err != nil {
							t.Errorf("Close() = %v, want <nil>", err)
						}
					})
				})
			}
		}
	}
}

// A resolver's word that nothing has happened has no response to leave out.
func TestMisbehavingStoreDoesNotStopResolving(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) }})
	b.wantAnswer("k", "a", 500)
	b.policy.InDoubt = idem.LeaveUnknown()
	b.wantAnswer("k2", "a", 500)
	b.policy.InDoubt = resolverSays(idem.NotApplied())
	b.faults.FailBefore("Settle", b.faults.Calls("Settle")+1, driver.ErrResponseInvalid)
	b.wantRefusal("k2", "a", idem.CodeUnavailable)
	b.wantFree("k2")
	b.wantPayment("k2", "a", 1, false)
}

func TestUnknownRecordsKeepALimitedResponse(t *testing.T) {
	const limit = 64 << 10
	for size, kept := range map[int]bool{100: true, limit - 100: true, limit + 1: false} {
		b := setup(t, parts{})
		long := idem.Response{Status: 500, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: bytes.Repeat([]byte("x"), size)}
		handler := func(context.Context) (idem.Response, error) { return long, nil }
		res, err := b.doWith("k", "a", handler)
		if err != nil || len(res.Response.Body) != size {
			t.Errorf("Do() = %d bytes, %v, want the whole answer of %d", len(res.Response.Body), err, size)
		}
		rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k"))
		if err != nil || rec.State != driver.StateUnknown || rec.Response.Omitted == kept || rec.Response.Status != 500 || !kept && len(rec.Response.Body)+len(rec.Response.Header) > 0 {
			t.Errorf("%d bytes are kept as %v, %+v, want kept %t", size, rec.State, rec.Response.Omitted, kept)
		}
		_, err = b.doWith("k", "a", handler)
		b.wantDoubt(err, "k", 0)
	}
	for _, header := range []map[string][]string{{"X": {strings.Repeat("x", limit)}}, {strings.Repeat("X", limit): nil}} {
		b := setup(t, parts{})
		_, _ = b.doWith("k", "a", func(context.Context) (idem.Response, error) { return idem.Response{Status: 500, Header: header}, nil })
		rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k"))
		if err != nil || !rec.Response.Omitted {
			t.Errorf("Get() = %+v, %v, want no response, because the header counts too", rec, err)
		}
	}
}
