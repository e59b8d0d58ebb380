package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

const (
	appliedKept = "kept" // it took effect, and repeats get the answer that is kept with the record; only for many

	// runRate bounds the decisions of a run in a second, so that requests keep their share of the servers.
	runRate = 200
	// decideTimeout bounds one decision of a run, with its look-up.
	decideTimeout = 30 * time.Second
)

// More outcomes of a line, beside those of package operate.
const (
	refused  operate.Outcome = "refused"   // the rules of the console are against it; nothing was decided
	notTried operate.Outcome = "not tried" // the run has not come to it
)

// errBusy says that the instance has a run under way, or closes.
var errBusy = errors.New("another run is under way")

// decisionOfMany is what an operator decides about a selection.
type decisionOfMany struct {
	outcome string
	answer  *idem.Response // with appliedWith
	driver.Decision
}

// manyConfirmation is what the operator types. The words are those of single decisions, and the number is that of
// the records.
func manyConfirmation(outcome string, n int) string {
	return map[string]string{appliedWith: "done ", notApplied: "again "}[outcome] + strconv.Itoa(n)
}

// outcomesOfMany are what an operator can choose for a selection.
func (c *Console) outcomesOfMany(sel *selection) (list []string) {
	if c.cfg.LookUp != nil {
		list = append(list, appliedFound)
	}
	if slices.ContainsFunc(sel.doubts, func(d operate.Doubt) bool { return d.Digest != "" }) {
		list = append(list, appliedKept)
	}
	if slices.ContainsFunc(sel.doubts, func(d operate.Doubt) bool { return operate.Likely(d.Route) != operate.OverGRPC }) {
		list = append(list, appliedWith)
	}
	return append(list, notApplied)
}

// parseMany reads the form for a selection. problem is a sentence for the operator.
func (c *Console) parseMany(sel *selection, op Operator, v url.Values) (d decisionOfMany, problem string) {
	d = decisionOfMany{outcome: v.Get("outcome"), Decision: driver.Decision{By: op.Name, Reason: strings.TrimSpace(v.Get("reason"))}}
	if !slices.Contains(c.outcomesOfMany(sel), d.outcome) {
		return d, "Choose what happened."
	}
	if d.Reason == "" {
		return d, "Give a reason."
	}
	if err := operate.CheckDecision(d.Decision, "Your name", "The reason"); err != nil {
		return d, err.Error() + "."
	}
	if confirm := manyConfirmation(d.outcome, len(sel.doubts)); strings.Join(strings.Fields(v.Get("confirm")), " ") != confirm {
		return d, "The confirmation of this outcome is “" + confirm + "”."
	}
	if d.outcome == appliedWith {
		resp, err := answerOf(v)
		if err != nil {
			return d, err.Error()
		}
		d.answer = &resp
	}
	return d, ""
}

// run settles a selection in the background.
type run struct {
	c      *Console
	id     string
	doubts []operate.Doubt
	decisionOfMany
	began  time.Time
	cancel context.CancelFunc
	ended  chan struct{} // closed at the end

	mu        sync.Mutex
	results   []lineResult // of the doubts
	counts    map[operate.Outcome]int
	stoppedBy string
	over      time.Time // zero while it goes on
	problem   string    // why it did not go to its end
}

// lineResult is what became of one record.
type lineResult struct {
	outcome operate.Outcome // "" if the run has not come to it
	detail  string
	at      time.Time
}

// start begins a run, unless one is under way. The run does not end with the request.
func (c *Console) start(ctx context.Context, sel *selection, d decisionOfMany) (*run, error) {
	r := &run{c: c, id: sel.id, doubts: sel.doubts, decisionOfMany: d, began: time.Now(), ended: make(chan struct{}),
		results: make([]lineResult, len(sel.doubts)), counts: make(map[operate.Outcome]int)}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if !c.runs.add(r) {
		r.cancel()
		return nil, errBusy
	}
	r.log().InfoContext(ctx, "console: an operator settles many attempts", "count", len(r.doubts), "reason", d.Reason)
	go r.do(ctx)
	return r, nil
}

func (r *run) log() *slog.Logger {
	return r.c.cfg.Logger.With(slog.String("run", r.id), slog.String("operator", r.By), slog.String("outcome", r.outcome))
}

// do carries the decisions out.
func (r *run) do(ctx context.Context) {
	defer close(r.ended)
	defer r.cancel()
	bulk := operate.Bulk[int]{Rate: runRate, Decide: r.decide, Report: func(i int, result operate.Result) error { r.report(ctx, i, &result); return nil }}
	err := bulk.Run(ctx, func(yield func(int) bool) {
		for i := range r.doubts {
			if !yield(i) {
				return
			}
		}
	})
	r.mu.Lock()
	switch done := r.done(); {
	case done == len(r.doubts): // it was stopped too late
		r.stoppedBy = ""
	case r.stoppedBy != "":
	case errors.Is(err, operate.ErrServersFail):
		r.problem = "So many decisions failed in a row that the rest was not tried. The lock service or the token store does not answer."
	default:
		r.problem = "This instance ended before the run."
	}
	r.over = time.Now()
	r.mu.Unlock()
	r.log().InfoContext(ctx, "console: a run over many attempts has ended", "counts", fmt.Sprint(r.counts), "err", err)
	r.c.strip.forget()
}

// done is how many records have a result. The caller holds the lock.
func (r *run) done() (n int) {
	for _, count := range r.counts {
		n += count
	}
	return n
}

// decide settles one attempt by the rules of single decisions.
func (r *run) decide(ctx context.Context, i int) operate.Result {
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	doubt := &r.doubts[i]
	looked := sync.OnceValue(func() *lookedUp {
		if r.c.cfg.LookUp == nil {
			return &lookedUp{}
		}
		return r.c.lookUpOfMany(ctx, doubt.Route, doubt.ID.OperationID())
	})
	tried := false // to write
	settler := operate.Settler{Store: r.c.store, Policy: r.c.policyOf,
		Settle: func(context.Context, driver.KeyID, *driver.Record) (operate.Settle, error) {
			if r.outcome == notApplied { // the others look when their answer is wanted
				if err := mayRunAgain(looked()); err != nil {
					return nil, err
				}
			}
			tried = true
			return operate.UnderLock(r.c.engine), nil
		}}
	verdict := operate.Verdict{Applied: r.outcome != notApplied, Kept: r.outcome == appliedKept,
		Answer: func(route string) (*idem.Response, error) { return r.answerFor(route, looked()) }}
	if verdict.Kept && doubt.Digest == "" {
		return operate.Result{Outcome: refused, Detail: "No answer that tells of a success is kept with the record."}
	}
	result := settler.Decide(ctx, doubt, &verdict, r.Decision)
	if verdict.Kept && !tried && result.Err != nil && !errors.Is(result.Err, driver.ErrUnavailable) && ctx.Err() == nil {
		result.Err = refusedError("The answer that you have seen is not kept with the record any longer.")
	}
	return inWords(result, tried)
}

// refusedError says why the console does not settle a record, in a sentence for the operator.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// mayRunAgain says why an operation is not released, if it is not.
func mayRunAgain(l *lookedUp) error {
	switch {
	case l.found():
		return refusedError("The service found the operation, so it took effect.")
	case l.Failed != "":
		return refusedError("The look-up failed, so the operation may have taken effect.")
	}
	return nil
}

// answerFor is what repeats of an operation that took effect get.
func (r *run) answerFor(route string, l *lookedUp) (*idem.Response, error) {
	complete := l.complete(route)
	switch {
	case r.outcome == appliedFound && complete:
		resp := l.answer(route)
		return &resp, nil
	case r.outcome == appliedFound && l.found():
		return nil, refusedError("The service found the operation, but not its whole answer. Settle it by itself.")
	case r.outcome == appliedFound && l.Failed != "":
		return nil, refusedError("The look-up failed.")
	case r.outcome == appliedFound:
		return nil, refusedError("The service did not find the operation. That is no proof that it did not take effect.")
	case complete:
		return nil, refusedError("The service found another answer than the one that was entered.")
	case operate.Likely(route) == operate.OverGRPC:
		return nil, refusedError("An answer of gRPC cannot be entered here.")
	}
	return r.answer, nil
}

// inWords puts an error into words that name no server. The error itself goes to the log. tried is whether the
// console tried to settle.
func inWords(result operate.Result, tried bool) operate.Result {
	var because refusedError
	switch err := result.Err; {
	case err == nil:
	case errors.As(err, &because):
		return operate.Result{Outcome: refused, Detail: string(because)}
	case errors.Is(err, idem.ErrForeignDomain):
		return operate.Result{Outcome: refused, Detail: "The attempt ran under another lock domain, which is not retired. Its holder may live."}
	case errors.Is(err, driver.ErrResponseInvalid):
		return operate.Result{Outcome: refused, Detail: "The store cannot keep this answer."}
	case errors.Is(err, driver.ErrNewerRecord), errors.Is(err, driver.ErrCorruptRecord):
		return operate.Result{Outcome: refused, Detail: "The record cannot be read: " + reasonOf(err) + "."}
	case tried:
		result.Detail = "The lock service or the token store did not answer. It may have been settled."
	default:
		result.Detail = "The token store did not answer. Nothing was settled."
	}
	return result
}

// policyOf is the policy of a route for a decision.
func (c *Console) policyOf(route string) idem.Policy {
	if p, ok := c.look.Policies(route); ok {
		return p
	}
	return idem.Policy{AllowGlobalKeys: true}
}

// report keeps the result of a record.
func (r *run) report(ctx context.Context, i int, result *operate.Result) {
	log := r.log().With(slog.String("operation", r.doubts[i].ID.OperationID()), slog.Uint64("attempt", uint64(r.doubts[i].Attempt.Number)))
	switch {
	case result.Err != nil:
		log.WarnContext(ctx, "console: an operator could not settle an attempt", "err", result.Err)
	case result.Outcome == operate.Settled:
		log.InfoContext(ctx, "console: an operator settled an attempt")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[i] = lineResult{result.Outcome, result.Detail, time.Now()}
	r.counts[result.Outcome]++
}

// mostRuns is how many runs an instance remembers.
const mostRuns = 10

// runs are those of this instance, oldest first. At most the last one is under way.
type runs struct {
	mu     sync.Mutex
	list   []*run
	closed bool
}

// add refuses a run while one is under way, and one over a selection that had its run.
func (s *runs) add(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.current() != nil || slices.ContainsFunc(s.list, func(old *run) bool { return old.id == r.id }) {
		return false
	}
	s.list = append(s.list, r)
	s.list = slices.Delete(s.list, 0, max(len(s.list)-mostRuns, 0))
	return true
}

// current is the run under way. The caller holds the lock.
func (s *runs) current() *run {
	if len(s.list) == 0 {
		return nil
	}
	last := s.list[len(s.list)-1]
	select {
	case <-last.ended:
		return nil
	default:
		return last
	}
}

func (s *runs) get(id string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.list {
		if r.id == id {
			return r
		}
	}
	return nil
}

// underWay is the run under way, nil if there is none.
func (s *runs) underWay() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current()
}

// all are the runs, newest first.
func (s *runs) all() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.list)
	slices.Reverse(list)
	return list
}

func (s *runs) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	r := s.current()
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("console: a run over many records has not ended: %w", ctx.Err())
	}
}

// settleChosen starts a run over a selection. The form that is sent twice leads to the same run.
func (c *Console) settleChosen(w http.ResponseWriter, r *http.Request) {
	id, op := r.PathValue("id"), operatorOf(r)
	if !op.MaySettle {
		c.fail(w, r, http.StatusForbidden, "You may read only. Nothing was settled.")
		return
	}
	began := func() bool { known := c.runs.get(id); return known != nil && known.By == op.Name }
	sel := c.selections.get(id, op)
	switch {
	case began():
		seeOther(w, root(r)+"runs/"+id)
		return
	case sel == nil:
		c.noSelection(w, r)
		return
	}
	d, problem := c.parseMany(sel, op, r.PostForm)
	status := http.StatusUnprocessableEntity
	if problem == "" {
		if _, err := c.start(r.Context(), sel, d); err == nil || began() {
			seeOther(w, root(r)+"runs/"+id)
			return
		}
		status, problem = http.StatusConflict, "Another run is under way at this instance, and there is one at a time. Wait for its end, and send this form again."
	}
	c.cfg.Logger.WarnContext(r.Context(), "console: a settlement of many was refused", "run", id, "operator", op.Name, "outcome", d.outcome, "problem", problem)
	p := c.selectPage(r, sel)
	p.Problem = problem + " Nothing was settled."
	p.keep(r.PostForm)
	c.render(w, r, status, "select", p)
}
