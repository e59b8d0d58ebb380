package sealed

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// calls are all methods that ask the wrapped store.
var calls = map[string]func(ctx context.Context, j *Joined) error{
	"Get": func(ctx context.Context, j *Joined) error { _, err := j.Get(ctx, driver.KeyID{}); return err },
	"Issue": func(ctx context.Context, j *Joined) error {
		_, err := j.Issue(ctx, driver.KeyID{}, time.Hour)
		return err
	},
	"Begin": func(ctx context.Context, j *Joined) error {
		_, err := j.Begin(ctx, driver.KeyID{}, driver.BeginRequest{})
		return err
	},
	"Settle": func(ctx context.Context, j *Joined) error {
		_, err := j.Settle(ctx, driver.KeyID{}, driver.Settlement{Response: payment()})
		return err
	},
	"Abort":         func(ctx context.Context, j *Joined) error { return j.Abort(ctx, driver.KeyID{}, driver.BeginRequest{}) },
	"ListOpen":      func(ctx context.Context, j *Joined) error { _, err := j.ListOpen(ctx, driver.OpenQuery{}); return err },
	"RetireDomain":  func(ctx context.Context, j *Joined) error { return j.RetireDomain(ctx, "d", driver.Decision{}) },
	"DomainRetired": func(ctx context.Context, j *Joined) error { _, err := j.DomainRetired(ctx, "d"); return err },
	"Ping":          func(ctx context.Context, j *Joined) error { return j.Ping(ctx) },
	"Clock":         func(ctx context.Context, j *Joined) error { _, err := j.Clock(ctx); return err },
	"Decisions":     func(ctx context.Context, j *Joined) error { _, err := j.Decisions(ctx, driver.KeyID{}); return err },
	"EachKey": func(ctx context.Context, j *Joined) error {
		return j.EachKey(ctx, func(driver.KeyID) bool { return true })
	},
	"Replicas": func(ctx context.Context, j *Joined) error { _, _, err := j.Replicas(ctx); return err },
	"BeginJoined": func(ctx context.Context, j *Joined) error {
		_, err := j.BeginJoined(ctx, driver.KeyID{}, driver.JoinedRequest{})
		return err
	},
	"BeginWithoutKey": func(ctx context.Context, j *Joined) error { _, err := j.BeginWithoutKey(ctx, 0); return err },
	"Held":            func(ctx context.Context, j *Joined) error { _, err := j.Held(ctx, driver.KeyID{}); return err },
	"Probe":           func(ctx context.Context, j *Joined) error { _, err := j.Probe(ctx, driver.KeyID{}); return err },
	"Bind": func(ctx context.Context, j *Joined) error {
		_, err := j.Bind(ctx, driver.KeyID{}, driver.Fingerprint{}, time.Hour)
		return err
	},
	"BeginLocked": func(ctx context.Context, j *Joined) error {
		_, err := j.BeginLocked(ctx, driver.KeyID{}, driver.BeginRequest{}, driver.OfferedLock{})
		return err
	},
	"SettleUnlock": func(ctx context.Context, j *Joined) error {
		_, err := j.SettleUnlock(ctx, driver.KeyID{}, driver.Settlement{Response: payment()}, driver.OfferedLock{})
		return err
	},
	"Commit": func(ctx context.Context, j *Joined) error {
		tx := &joinedTx{JoinedTx: failingTx{}, store: j.Store}
		return tx.Commit(ctx, driver.Settlement{Response: payment()})
	},
}

func TestErrorsOfTheWrappedStore(t *testing.T) {
	j, err := NewJoined(failing{memorystore.New()}, ringOf(t, "k1"))
	if err != nil {
		t.Fatal(err)
	}
	if space := j.LockSpace(); space != "locks" {
		t.Errorf("LockSpace() = %v, want that of the wrapped store", space)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel() // the memory store says so, and the rest of failing too
	for name, call := range calls {
		if err := call(gone, j); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreadable) {
			t.Errorf("%s() = %v, want the error of the wrapped store", name, err)
		}
	}
}

// failing is a store in memory that has every method. The methods beyond [memorystore.Store]
// return the error of their context.
type failing struct{ *memorystore.Store }

func (failing) Replicas(ctx context.Context) (attached, wanted int, err error) {
	return 0, 0, ctx.Err()
}
func (failing) BeginJoined(ctx context.Context, _ driver.KeyID, _ driver.JoinedRequest) (begin driver.JoinedBegin, err error) {
	return begin, ctx.Err()
}
func (failing) BeginWithoutKey(ctx context.Context, _ time.Duration) (driver.JoinedTx, error) {
	return nil, ctx.Err()
}
func (failing) Held(ctx context.Context, _ driver.KeyID) (bool, error) { return false, ctx.Err() }
func (failing) Probe(ctx context.Context, _ driver.KeyID) (rec driver.Record, err error) {
	return rec, ctx.Err()
}
func (failing) Bind(ctx context.Context, _ driver.KeyID, fp driver.Fingerprint, _ time.Duration) (driver.Fingerprint, error) {
	return fp, ctx.Err()
}

func (failing) LockSpace() any { return "locks" }
func (failing) BeginLocked(ctx context.Context, _ driver.KeyID, _ driver.BeginRequest, _ driver.OfferedLock) (res driver.LockedBegin, err error) {
	return res, ctx.Err()
}
func (failing) SettleUnlock(ctx context.Context, _ driver.KeyID, _ driver.Settlement, _ driver.OfferedLock) (res driver.SettleResult, err error) {
	return res, ctx.Err()
}

type failingTx struct{ driver.JoinedTx }

func (failingTx) Commit(ctx context.Context, _ driver.Settlement) error { return ctx.Err() }

// A wrapped store need not tell operators anything, nor take locks.
func TestQuestionsThatTheWrappedStoreCannotAnswer(t *testing.T) {
	j := &Joined{Store: over(t, struct{ driver.Store }{memorystore.New()}, ringOf(t, "k1"))}
	if got := j.Visibility(); got != driver.VisibilityProcess {
		t.Errorf("Visibility() = %v, want that of the wrapped store", got)
	}
	if space := j.LockSpace(); space != nil {
		t.Errorf("LockSpace() = %v, want nil", space)
	}
	for _, name := range []string{"Clock", "Decisions", "EachKey", "Replicas", "BeginLocked", "SettleUnlock"} {
		if err := calls[name](t.Context(), j); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s() = %v, want %v", name, err, errors.ErrUnsupported)
		}
	}
}

// A store that can open everything warns of nothing.
func TestNoWarningWithoutAFault(t *testing.T) {
	var log bytes.Buffer
	s := over(t, memorystore.New(), ringOf(t, "k1"), WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithLogger(nil))
	id, a := stored(t, s, driver.StateUnknown, payment())
	_, req := newRequest()
	if _, err := s.Begin(t.Context(), id, req); err != nil {
		t.Fatal(err)
	}
	if page, err := s.ListOpen(t.Context(), driver.OpenQuery{}); err != nil || len(page.Records) != 1 {
		t.Errorf("ListOpen() = %+v, %v, want the record", page, err)
	}
	st := settlement(a, driver.StateCompleted, payment())
	for range 2 {
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatal(err)
		}
		st.ID = driver.NewNonce() // the second one finds the first
	}
	if log.Len() > 0 {
		t.Errorf("logged %q, want nothing", log.String())
	}
}
