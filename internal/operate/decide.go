package operate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Doubt names an attempt as an operator has seen it.
type Doubt struct {
	ID      driver.KeyID
	Attempt driver.Attempt
	Route   string
	Digest  string // of the answer that was kept, "" without one; see [AnswerDigest]
}

// Verdict is what an operator says about an attempt.
type Verdict struct {
	Applied bool // the operation took effect; otherwise it did not, and no longer can
	Kept    bool // repeats get the answer that is kept with the record
	// Answer makes the answer for repeats, of an operation that took effect, unless Kept is set.
	Answer func(route string) (*idem.Response, error)
}

// Outcome is what became of a decision.
type Outcome string

// The outcomes of a decision.
const (
	Settled Outcome = "settled"         // it stands now
	Already Outcome = "already settled" // it stood before
	Changed Outcome = "changed since"   // another decision stands, another attempt began, or the record is gone
	Locked  Outcome = "locked"          // another owner has the lock of the key; nothing was decided
	Failed  Outcome = "failed"          // Err says why; it may have been decided if a server did not answer
)

// Done reports whether the decision stands.
func (o Outcome) Done() bool { return o == Settled || o == Already }

// Result tells what became of a decision.
type Result struct {
	Outcome Outcome
	Detail  string // one line for a person, "" if there is nothing to add
	Err     error  // with Failed
}

// Settle settles an attempt. The answer is nil if the operation did not take effect. The error wraps
// driver.ErrLocked, or idem.ErrNotOpen if another attempt is open or none is.
type Settle func(ctx context.Context, id driver.KeyID, attempt driver.Attempt, answer *idem.Response, d driver.Decision, p *idem.Policy) error

// UnderLock settles under the lock of the key.
func UnderLock(e *idem.Engine) Settle {
	return func(ctx context.Context, id driver.KeyID, attempt driver.Attempt, answer *idem.Response, d driver.Decision, p *idem.Policy) error {
		resolution := idem.NotApplied()
		if answer != nil {
			resolution = idem.Applied(*answer)
		}
		_, err := e.Decide(ctx, id, attempt, resolution, d, p)
		return err
	}
}

// Settler carries out decisions. Its fields do not change. It is safe for concurrent use.
type Settler struct {
	Store driver.Store
	// Settle returns how to settle an open record, or says why that is not possible.
	Settle func(context.Context, driver.KeyID, *driver.Record) (Settle, error)
	// Policy returns the policy of a route. The record has the times that its route promised, and
	// those of the policy count if they are longer.
	Policy func(route string) idem.Policy
	DryRun bool // change nothing, and say what would be done
}

// Decide settles an attempt, if it is still the one that the operator has seen: number, fence and
// nonce. It looks before it takes the lock, and again under the lock. The same decision
// can be sent again at any time, by any process, and does nothing the second time.
func (s *Settler) Decide(ctx context.Context, doubt *Doubt, v *Verdict, d driver.Decision) Result {
	rec, err := s.get(ctx, doubt.ID)
	switch {
	case err != nil:
		return Result{Outcome: Failed, Err: err}
	case rec.Attempt != doubt.Attempt || !rec.State.Open():
		return s.standing(ctx, doubt, v, &rec)
	}
	answer, err := v.answer(doubt, &rec)
	if err != nil {
		return Result{Outcome: Failed, Err: err}
	}
	settle, err := s.Settle(ctx, doubt.ID, &rec)
	switch {
	case err != nil:
		return Result{Outcome: Failed, Err: err}
	case s.DryRun:
		return Result{Outcome: Settled}
	}
	policy := s.Policy(rec.Route)
	err = settle(ctx, doubt.ID, doubt.Attempt, answer, d, &policy)
	switch {
	case err == nil:
		return Result{Outcome: Settled}
	case errors.Is(err, driver.ErrLocked):
		return Result{Outcome: Locked, Detail: "its holder runs, or the session of the holder has not timed out yet"}
	case errors.Is(err, idem.ErrNotOpen), errors.Is(err, driver.ErrStaleFence):
		if rec, err = s.get(ctx, doubt.ID); err == nil {
			return s.standing(ctx, doubt, v, &rec)
		}
	}
	return Result{Outcome: Failed, Err: err}
}

// get reads a record. One whose response cannot be read is good without it.
func (s *Settler) get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if err != nil && rec.State != driver.StateNone {
		rec.ResponseErr, err = err, nil
	}
	return rec, err
}

// answer is what repeats get, nil if the operation did not take effect.
func (v *Verdict) answer(doubt *Doubt, rec *driver.Record) (*idem.Response, error) {
	switch {
	case !v.Applied:
		return nil, nil //nolint:nilnil // not applied
	case !v.Kept:
		return v.Answer(rec.Route)
	case rec.Response == nil:
		return nil, cmp.Or(rec.ResponseErr, errors.New("no answer is kept with the record"))
	}
	switch digest := AnswerDigest(rec); {
	case digest == "":
		return nil, errors.New("the answer was too long to be kept, or was removed")
	case !KeepsSuccess(rec):
		return nil, fmt.Errorf("the kept answer has status %d, which does not tell clients that their request took effect; name a file with the answer", rec.Response.Status)
	case digest == doubt.Digest:
		return (*idem.Response)(rec.Response), nil
	}
	return nil, errors.New("another answer is kept than the one that was exported")
}

// standing says what stands in place of the attempt that was to be settled. A decision of a person
// counts as this one if it has the same state and the same answer, whoever made it.
func (s *Settler) standing(ctx context.Context, doubt *Doubt, v *Verdict, rec *driver.Record) Result {
	if rec.Attempt == doubt.Attempt && rec.Decision.ByPerson() && v.became(rec.State) && v.sameAnswer(doubt, rec) {
		return Result{Outcome: Already, Detail: told(rec)}
	}
	changed := Result{Outcome: Changed, Detail: told(rec)}
	id, known := v.id(doubt)
	if !known || rec.Attempt == doubt.Attempt {
		return changed
	}
	// The key went on after the decision: it was released and ran again, or its time is over.
	in, ok := s.Store.(driver.StoreInspector)
	if !ok {
		return changed
	}
	list, err := in.Decisions(ctx, doubt.ID)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return Result{Outcome: Failed, Err: err}
	}
	for _, d := range list {
		if d.ID == id {
			return Result{Outcome: Already, Detail: fmt.Sprintf("by %s on %s; now %s", OneLine(d.By), Stamp(d.At), told(rec))}
		}
	}
	return changed
}

// became reports whether a settled attempt has the state that the verdict gives it.
func (v *Verdict) became(state driver.State) bool {
	if v.Applied {
		return state == driver.StateCompleted || state == driver.StateExpired
	}
	return state == driver.StateReleased || state == driver.StateIssued
}

// sameAnswer reports whether a settled record has the answer of the verdict. It believes it if the
// answer is no longer there.
func (v *Verdict) sameAnswer(doubt *Doubt, rec *driver.Record) bool {
	switch {
	case !v.Applied || rec.Response == nil:
		return true
	case v.Kept:
		return AnswerDigest(rec) == doubt.Digest
	}
	resp, err := v.Answer(rec.Route)
	return err == nil && AnswerDigest(&driver.Record{Response: (*driver.Response)(resp)}) == AnswerDigest(rec)
}

// id is the ID that the verdict has as a settlement, see [driver.DecisionID].
func (v *Verdict) id(doubt *Doubt) (id driver.Nonce, known bool) {
	st := driver.Settlement{Attempt: doubt.Attempt, State: driver.StateReleased}
	if v.Applied {
		if v.Kept {
			return id, false // the answer went with the record
		}
		resp, err := v.Answer(doubt.Route)
		if err != nil {
			return id, false
		}
		st.State, st.Response = driver.StateCompleted, (*driver.Response)(resp)
	}
	id, err := driver.DecisionID(doubt.ID, &st)
	return id, err == nil
}

// told says in a few words what a record is.
func told(rec *driver.Record) string {
	if rec.State == driver.StateNone {
		return "there is no record"
	}
	text := fmt.Sprintf("attempt %d is %v since %s", rec.Attempt.Number, rec.State, Stamp(rec.Since()))
	if by := rec.Decision.By; by != "" {
		text += ", by " + OneLine(by)
	}
	return text
}

// AnswerDigest stands for the answer of a record. It is "" without an answer that could be replayed.
func AnswerDigest(rec *driver.Record) string {
	if rec.Response == nil || rec.Response.Omitted {
		return ""
	}
	resp := *rec.Response
	resp.Span = driver.Span{} // it names a trace, which clients do not get
	data, err := resp.AppendBinary(nil)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:16])
}
