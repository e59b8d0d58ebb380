package idem_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// TestJoinedCommitWithoutAnswerIsProbed has COMMIT lose its answer, before and after it was applied.
func TestJoinedCommitWithoutAnswerIsProbed(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	for name, tt := range map[string]struct {
		commit func(b *joinedBundle, tx *bookTx, s driver.Settlement)
		probe  error
		code   idem.Code // "" is the payment
		state  driver.State
		lines  []string
	}{
		"committed": {func(_ *joinedBundle, tx *bookTx, s driver.Settlement) { _ = tx.commit(context.Background(), s) }, nil,
			"", driver.StateCompleted, []string{"payment 1"}},
		"rolled back": {func(_ *joinedBundle, tx *bookTx, _ driver.Settlement) { _ = tx.end(nil) }, nil,
			idem.CodeUnavailable, driver.StateNone, nil},
		"committed, and the probe fails": {func(_ *joinedBundle, tx *bookTx, s driver.Settlement) { _ = tx.commit(context.Background(), s) }, lost,
			idem.CodeUnavailable, driver.StateCompleted, []string{"payment 1"}},
		"committed as pending": {func(b *joinedBundle, tx *bookTx, s driver.Settlement) {
			b.leavePending(tx, s)
		}, nil, idem.CodeOutcomeUnknown, driver.StateUnknown, nil},
		"rolled back, and another attempt is pending": {func(b *joinedBundle, tx *bookTx, s driver.Settlement) {
			s.Attempt.Nonce = driver.NewNonce()
			b.leavePending(tx, s)
		}, nil, idem.CodeUnavailable, driver.StatePending, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			b.ledger.onProbe = func() error { return tt.probe }
			b.ledger.onCommit = func(tx *bookTx, s driver.Settlement) (bool, error) {
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
func (b *joinedBundle) leavePending(tx *bookTx, s driver.Settlement) {
	_ = tx.end(nil)
	_, err := b.ledger.Begin(context.Background(), tx.id, driver.BeginRequest{Kind: b.kind(), Route: b.policy.Name,
		Fence: s.Attempt.Fence, Nonce: s.Attempt.Nonce, Fingerprint: tx.begin.Record.Fingerprint})
	if err != nil {
		b.Error(err)
	}
}

func TestJoinedProbeThatFindsAnotherAttemptReplaysIt(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"100", "900"} {
		b := setupJoined(t, parts{})
		b.ledger.onCommit = func(tx *bookTx, _ driver.Settlement) (bool, error) {
			b.ledger.onCommit = nil
			_ = tx.end(nil)
			b.pays("k1", body)
			return true, errors.New("connection reset")
		}
		res, err := b.doWith("k1", "100", b.paying(201))
		if body == "100" {
			b.wantPaid(res, err, 2, true)
		} else {
			b.wantRefused(err, idem.CodeKeyReused)
		}
		b.wantLines("payment 2")
	}
}

// TestJoinedResponseThatTheStoreCannotHold has the payment commit without it, or not at all.
func TestJoinedResponseThatTheStoreCannotHold(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.ledger.onCommit = func(_ *bookTx, s driver.Settlement) (bool, error) {
		return !s.Response.Omitted, driver.ErrResponseInvalid
	}
	b.wantPayment("k1", "100", 1, false)
	b.wantRefusal("k1", "100", idem.CodeResultUnavailable)
	b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) { return true, driver.ErrResponseInvalid }
	_, err := b.doWith("k2", "100", b.paying(201))
	b.wantRefused(err, idem.CodeUnavailable)
	if !errors.Is(err, driver.ErrRolledBack) {
		t.Errorf("Do() = %v, want %v", err, driver.ErrRolledBack)
	}
	b.wantState("k2", driver.StateNone)
	b.wantLines("payment 1")
}

// TestJoinedTransactionEndedByTheHandlerIsUnknown covers a raw ROLLBACK, whatever the handler answers.
func TestJoinedTransactionEndedByTheHandlerIsUnknown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int // 0 is an error
		panics bool
	}{
		"201": {status: 201}, "402": {status: 402}, "500": {status: 500}, "an error": {}, "a panic": {panics: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			escape := func(ctx context.Context) {
				b.write(ctx, "escaped").ended = true
				if _, err := idem.CheckOwner(ctx); !errors.Is(err, driver.ErrEscaped) {
					t.Errorf("CheckOwner() = %v, want %v", err, driver.ErrEscaped)
				}
			}
			if tt.panics {
				b.panics(b.operation("k1", "100"), escape)
			} else {
				_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
					escape(ctx)
					if tt.status == 0 {
						return idem.Response{}, errors.New("boom")
					}
					return idem.Response{Status: tt.status}, nil
				})
				b.wantDoubt(err, "k1", 0)
			}
			b.wantEvents(telemetry.EventMisused, 1)
			b.wantState("k1", driver.StateUnknown)
			_, err := b.doWith("k1", "100", b.paying(201))
			b.wantDoubt(err, "k1", 0)
			rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k1"))
			if err != nil || (rec.Response != nil) != (tt.status > 0) || rec.Response != nil && rec.Response.Status != tt.status {
				t.Errorf("Get() = %+v, %v, want the handler's answer kept for the operator", rec, err)
			}
		})
	}
}

func TestJoinedEscapeIsRecordedOnceTheStoreIsBack(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	var mu sync.Mutex
	down, tries := true, 0
	defer func() { // also after a failure, so that the engine can be closed
		mu.Lock()
		defer mu.Unlock()
		down = false
	}()
	b.ledger.onSettle = func() error {
		mu.Lock()
		defer mu.Unlock()
		tries++
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
	tries = 0
	mu.Unlock()
	b.eventually("the store has failed in the background", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return tries >= 2
	})
	other, err := idem.NewJoined(b.ledger)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Do(t.Context(), b.operation("k1", "100"), b.pay)
	b.wantRefused(err, idem.CodeInProgress) // nor in another one
	b.wantRuns(0)
	mu.Lock()
	down = false
	mu.Unlock()
	_, err = b.doWhenFree("k1", "100")
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.wantState("k1", driver.StateUnknown)
	b.wantEvents(telemetry.EventUnknown, 1)
}

func TestJoinedEscapeThatCannotBeRecordedIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]error{"the engine closes": errors.New("connection refused"), "the record is unreadable": driver.ErrCorruptRecord} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			b.ledger.onSettle = func() error { return away }
			_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
				b.write(ctx, "escaped").ended = true
				return created(1), nil
			})
			b.wantRefused(err, idem.CodeOutcomeUnknown)
			if name == "the engine closes" {
				_ = b.engine.Close(ended())
			}
			b.eventually("it is given up", func() bool { return b.saw(telemetry.EventSettleAbandoned) == 1 })
		})
	}
}

// interruptedJoined leaves a committed pending record, as a crash after DDL does on MySQL.
func (b *joinedBundle) interruptedJoined(key string) driver.KeyID {
	b.Helper()
	id := idem.NewKeyID("m1", idem.Key(key))
	fp, err := fingerprintOf("http", "100")(idem.FingerprintVersion)
	if err == nil {
		_, err = b.ledger.Begin(context.Background(), id, driver.BeginRequest{Fence: driver.JoinedFence(1), Nonce: driver.NewNonce(), Fingerprint: fp})
	}
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// TestJoinedRerunWithoutEffectLeavesTheDoubt has an attempt roll back that started from one in doubt.
func TestJoinedRerunWithoutEffectLeavesTheDoubt(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }})
	id := b.interruptedJoined("k1")
	res, err := b.doWith("k1", "100", answers(500))
	if err != nil || res.Response.Status != 500 || res.Replayed {
		t.Errorf("Do() = %+v, %v, want its own 500", res, err)
	}
	op := b.operation("k1", "100")
	op.Transport = idem.TransportDirect
	boom := errors.New("boom")
	_, err = b.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{}, boom })
	if !errors.Is(err, boom) || refusedAs(err, idem.CodeOutcomeUnknown) {
		t.Errorf("Do() = %v, want its own error", err)
	}
	_, err = b.engine.Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
		if _, err := b.engine.Decide(ctx, id, driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "ops"}, &b.policy); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("Decide() while an attempt runs = %v, want %v", err, driver.ErrLocked)
		}
		if _, held, err := b.engine.HeldBy(ctx, id); !held || err != nil {
			t.Errorf("HeldBy() = %t, %v, want true", held, err)
		}
		idem.NoEffect(ctx)
		return idem.Response{}, nil
	})
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.wantState("k1", driver.StatePending)
	if b.saw(telemetry.EventUnknown) != 3 || b.saw(telemetry.EventReleased) != 0 {
		t.Errorf("events = %v, want three of an unknown outcome", b.events)
	}
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
			b.interruptedJoined("k1")
			res, err := b.doWith("k1", "100", b.paying(201))
			if tt.code == "" {
				b.wantPaid(res, err, 1, tt.runs == 0)
			} else {
				b.wantRefused(err, tt.code)
				b.wantState("k1", driver.StateUnknown)
			}
			b.wantRuns(tt.runs)
		})
	}
}

func resolverSays(r idem.Resolution) idem.InDoubt {
	return idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
		if in.Fence != (driver.Fence{}) && in.Attempt.Fence.Domain == driver.JoinedDomain {
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
		"another error, reported": {3, false, func(ctx context.Context) (idem.Response, error) {
			idem.ReportFailure(ctx, errors.New("boom"))
			return idem.Response{Status: 500}, nil
		}, 1, 500},
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
			b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(tt.retries), idem.WithMaxOpenExecutionsPerScope(1)}})
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
			if _, err := b.doWith("k2", "100", answers(404)); err != nil { // the request counts no longer
				t.Errorf("Do() of another key = %v", err)
			}
		})
	}
}

func TestJoinedConflictAtCommitRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(1)}})
	b.ledger.onCommit = func(tx *bookTx, _ driver.Settlement) (bool, error) {
		b.ledger.onCommit = nil
		return true, tx.end(driver.ErrConflict)
	}
	b.wantPayment("k1", "100", 2, false)
	b.wantLines("payment 2")
	b.ledger.onCommit = func(tx *bookTx, _ driver.Settlement) (bool, error) { return true, tx.end(driver.ErrConflict) }
	b.wantRefusal("k2", "100", idem.CodeUnavailable)
	b.wantRuns(4)
	b.wantEvents(telemetry.EventConflict, 2)
}

func TestJoinedOperatorDecidesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, _ = b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		b.write(ctx, "escaped").ended = true
		return created(1), nil
	})
	rec, err := b.engine.Decide(context.Background(), idem.NewKeyID("m1", "k1"), driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "ops"}, &b.policy)
	if err != nil || rec.State != driver.StateReleased {
		t.Fatalf("Decide() = %v, %v, want released", rec.State, err)
	}
	res := b.wantPayment("k1", "100", 1, false)
	if res.Attempt != 2 {
		t.Errorf("attempt = %d, want 2", res.Attempt)
	}
}
