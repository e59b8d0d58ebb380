package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

func TestCloseWaitsForWhatRuns(t *testing.T) {
	b := setup(t, parts{})
	finish := b.started("k", "a", b.pay)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := b.engine.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close() = %v while a handler runs, want %v", err, context.DeadlineExceeded)
	}
	_, err := b.do("k2", "a")
	b.wantRefused(err, idem.CodeUnavailable)
	res, err := finish()
	b.wantPaid(res, err, 1, false)
	if err := b.engine.Close(context.Background()); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
	b.wantState("k", idem.StateCompleted)
}

type closer struct{ err error }

func (c closer) Close() error { return c.err }

func TestCloseClosesWhatItsOptionNames(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	b := setup(t, parts{opts: []idem.Option{idem.WithCloser(closer{gone})}})
	if err := b.engine.Close(t.Context()); !errors.Is(err, gone) {
		t.Errorf("Close() = %v, want the error of the closer", err)
	}
}

func TestCloseGivesUpSavingButLeavesTheLock(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Millisecond)}})
	b.faults.FailBefore("Settle", idemtest.Every, nil)
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := b.engine.Close(ctx); err == nil {
		t.Error("Close() = nil with an outcome unsaved, want an error")
	}
	b.eventually("saving is given up", func() bool { return b.saw(idem.EventSettleAbandoned) == 1 })
	if _, held := b.locker.Holder(idem.NewKeyID("m1", "k")); !held {
		t.Error("the lock was given back with the outcome unsaved")
	}
}
