package idem_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// TestJoinedCommitWithoutAnswerIsProbed has COMMIT lose its answer, before and after it was applied.
func TestJoinedCommitWithoutAnswerIsProbed(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	for name, tt := range map[string]struct {
		commit func(b *joinedBundle, tx *bookTx, s idem.Settlement)
		probe  error
		code   idem.Code // "" is the payment
		state  idem.State
		lines  []string
	}{
		"committed": {func(_ *joinedBundle, tx *bookTx, s idem.Settlement) { _ = tx.commit(context.Background(), s) }, nil,
			"", idem.StateCompleted, []string{"payment 1"}},
		"rolled back": {func(_ *joinedBundle, tx *bookTx, _ idem.Settlement) { _ = tx.end(nil) }, nil,
			idem.CodeUnavailable, idem.StateNone, nil},
		"committed, and the probe fails": {func(_ *joinedBundle, tx *bookTx, s idem.Settlement) { _ = tx.commit(context.Background(), s) }, lost,
			idem.CodeUnavailable, idem.StateCompleted, []string{"payment 1"}},
		"committed as pending": {func(b *joinedBundle, tx *bookTx, s idem.Settlement) {
			b.leavePending(tx, s)
		}, nil, idem.CodeOutcomeUnknown, idem.StateUnknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			b.ledger.onProbe = func() error { return tt.probe }
			b.ledger.onCommit = func(tx *bookTx, s idem.Settlement) (bool, error) {
				tt.commit(b, tx, s)
				return true, lost
			}
			res, err := b.doWith("k1", "100", b.paying(201))
			if tt.code == "" {
				b.wantPaid(res, err, 1, false)
			} else {
				b.wantRefused(err, tt.code)
			}
			b.wantState("k1", tt.state)
			b.wantLines(tt.lines...)
		})
	}
}

// leavePending leaves the pending record of a transaction committed, as DDL does on MySQL.
func (b *joinedBundle) leavePending(tx *bookTx, s idem.Settlement) {
	_ = tx.end(nil)
	_, err := b.ledger.Begin(context.Background(), tx.id, idem.BeginRequest{Kind: b.policy.Kind, Route: b.policy.Name,
		Fence: s.Attempt.Fence, Nonce: s.Attempt.Nonce, Fingerprint: tx.begin.Record.Fingerprint})
	if err != nil {
		b.Error(err)
	}
}

func TestJoinedProbeThatFindsAnotherAttemptReplaysIt(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.ledger.onCommit = func(tx *bookTx, _ idem.Settlement) (bool, error) {
		b.ledger.onCommit = nil
		_ = tx.end(nil)
		other, err := idem.NewJoined(b.ledger)
		if err != nil {
			t.Error(err)
		}
		if _, err := other.Do(context.Background(), b.operation("k1", "100"), b.paying(201)); err != nil {
			t.Error(err)
		}
		return true, errors.New("connection reset")
	}
	res, err := b.doWith("k1", "100", b.paying(201))
	b.wantPaid(res, err, 2, true)
	b.wantLines("payment 2")
}

// TestJoinedTransactionEndedByTheHandlerIsUnknown covers a raw ROLLBACK, whatever the handler answers.
func TestJoinedTransactionEndedByTheHandlerIsUnknown(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 402, 500} {
		b := setupJoined(t, parts{})
		_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
			b.write(ctx, "escaped").ended = true
			return idem.Response{Status: status}, nil
		})
		b.wantRefused(err, idem.CodeOutcomeUnknown)
		if b.saw(idem.EventMisused) != 1 {
			t.Errorf("%d events, want 1", b.saw(idem.EventMisused))
		}
		b.wantState("k1", idem.StateUnknown)
	}
}

func TestJoinedEscapeIsRecordedOnceTheStoreIsBack(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	var mu sync.Mutex
	down := true
	b.ledger.onSettle = func() error {
		mu.Lock()
		defer mu.Unlock()
		if down {
			return errors.New("connection refused")
		}
		return nil
	}
	_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		b.write(ctx, "escaped").ended = true
		return created(1), nil
	})
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	_, err = b.do("k1", "100")
	b.wantRefused(err, idem.CodeInProgress) // nothing runs meanwhile in this process
	mu.Lock()
	down = false
	mu.Unlock()
	b.eventually("unknown is stored", func() bool { return b.saw(idem.EventUnknown) == 1 })
	b.wantState("k1", idem.StateUnknown)
}

// TestJoinedCommittedPendingRecordIsUnknown is what a crash after DDL leaves on MySQL.
func TestJoinedCommittedPendingRecordIsUnknown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		doubt idem.InDoubt
		runs  int64
		code  idem.Code
	}{
		"left unknown":       {idem.LeaveUnknown(), 0, idem.CodeOutcomeUnknown},
		"resolver: applied":  {resolverSays(idem.Applied(created(1))), 0, ""},
		"resolver: released": {resolverSays(idem.NotApplied()), 1, ""},
		"runs again":         {idem.RunAgain(), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.InDoubt = tt.doubt }})
			fp, err := fingerprintOf("http", "100")(idem.FingerprintVersion)
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.ledger.Begin(context.Background(), idem.NewKeyID("m1", "k1"), idem.BeginRequest{Fence: idem.JoinedFence(1), Nonce: idem.NewNonce(), Fingerprint: fp})
			if err != nil {
				t.Fatal(err)
			}
			res, err := b.doWith("k1", "100", b.paying(201))
			if tt.code == "" {
				b.wantPaid(res, err, 1, tt.runs == 0)
			} else {
				b.wantRefused(err, tt.code)
				b.wantState("k1", idem.StateUnknown)
			}
			b.wantRuns(tt.runs)
		})
	}
}

func resolverSays(r idem.Resolution) idem.InDoubt {
	return idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
		if in.Fence != (idem.Fence{}) {
			return r, errors.New("joined mode has no fence")
		}
		return r, nil
	})
}

func TestJoinedConflictRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		retries int
		once    bool
		fail    func(ctx context.Context) (idem.Response, error)
		runs    int64
		status  int // 0 is an error
	}{
		"returned": {3, false, func(context.Context) (idem.Response, error) { return idem.Response{}, errDeadlock }, 3, 201},
		"reported": {3, false, func(ctx context.Context) (idem.Response, error) {
			idem.ReportFailure(ctx, errDeadlock)
			return idem.Response{Status: 500}, nil
		}, 3, 201},
		"another error": {3, false, func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("boom") }, 1, 0},
		"too often":     {1, false, func(context.Context) (idem.Response, error) { return idem.Response{}, errDeadlock }, 2, 0},
		"without the option": {0, false, func(ctx context.Context) (idem.Response, error) {
			idem.ReportFailure(ctx, errDeadlock)
			return idem.Response{Status: 500}, nil
		}, 1, 500},
		"a chain cannot rerun": {3, true, func(context.Context) (idem.Response, error) { return idem.Response{}, errDeadlock }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(tt.retries)}})
			op := b.operation("k1", "100")
			op.RunOnce = tt.once
			res, err := b.engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
				if n := b.runs.Add(1); n < 3 {
					b.write(ctx, "lost")
					return tt.fail(ctx)
				}
				b.write(ctx, "paid")
				return created(1), nil
			})
			if res.Response.Status != tt.status || (err != nil) != (tt.status == 0) {
				t.Errorf("Do() = %+v, %v, want %d", res, err, tt.status)
			}
			b.wantRuns(tt.runs)
			if tt.status == 201 {
				b.wantLines("paid")
			}
		})
	}
}

func TestJoinedConflictAtCommitRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(1)}})
	b.ledger.onCommit = func(tx *bookTx, _ idem.Settlement) (bool, error) {
		b.ledger.onCommit = nil
		return true, tx.end(idem.ErrConflict)
	}
	res, err := b.doWith("k1", "100", b.paying(201))
	b.wantPaid(res, err, 2, false)
	b.wantLines("payment 2")
	if b.saw(idem.EventConflict) != 1 {
		t.Errorf("%d events of a conflict, want 1", b.saw(idem.EventConflict))
	}
}

func TestJoinedOperatorDecidesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, _ = b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		b.write(ctx, "escaped").ended = true
		return created(1), nil
	})
	rec, err := b.engine.Decide(context.Background(), idem.NewKeyID("m1", "k1"), idem.Attempt{}, idem.NotApplied(), idem.Decision{By: "ops"}, &b.policy)
	if err != nil || rec.State != idem.StateReleased {
		t.Fatalf("Decide() = %v, %v, want released", rec.State, err)
	}
	res, err := b.doWith("k1", "100", b.paying(201))
	b.wantPaid(res, err, 1, false)
	if res.Attempt != 2 {
		t.Errorf("attempt = %d, want 2", res.Attempt)
	}
}
