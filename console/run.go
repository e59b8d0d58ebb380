package console

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

const (
	linesPerPage = 100
	mostNamed    = 25 // operations that the confirmation names
	// A page loads again after so many seconds: one of a run under way, and one of a run that this instance does
	// not know, because the next request may reach the instance that has it.
	refreshRun, refreshUnknown = 2, 5
)

// selectPage asks for the decision about a selection.
type selectPage struct {
	page
	ID                      string
	Count, Routes           int
	By                      []routeRow // the routes
	Oldest, Newest          string
	First                   []lineRow // the oldest ones
	Gone, Later             int
	More, Parted            bool
	Kept                    int // have an answer that repeats may get
	GRPC                    int // an answer cannot be entered for them
	Choices                 []choice
	Max                     int // bytes of a reason
	LooksUp                 bool
	Back                    string
	Busy                    string // link to the run under way
	Problem                 string
	Outcome, Reason, Status string // as the operator has entered them
	ContentType, Location   string
	Body, Empty             string
}

func (c *Console) selectPage(r *http.Request, sel *selection) *selectPage {
	p := &selectPage{page: c.page(r, "Settle "+plural(len(sel.doubts), "record", "records")), ID: sel.id, Count: len(sel.doubts), By: sel.routes(),
		Oldest: operate.Stamp(sel.oldest), Newest: operate.Stamp(sel.newest), Gone: sel.gone, Later: sel.later, More: sel.more, Parted: sel.parted,
		Max: driver.MaxReasonBytes, LooksUp: c.cfg.LookUp != nil, Back: sel.back, Status: "201", ContentType: "application/json"}
	p.Routes = len(p.By)
	for _, row := range p.By {
		p.Kept += row.Kept
		if operate.Likely(row.Route) == operate.OverGRPC {
			p.GRPC += row.Count
		}
	}
	for _, outcome := range c.outcomesOfMany(sel) {
		p.Choices = append(p.Choices, choice{outcome, manyConfirmation(outcome, p.Count)})
	}
	for i := range sel.doubts[:min(len(sel.doubts), mostNamed)] {
		p.First = append(p.First, lineOf(&sel.doubts[i], lineResult{}))
	}
	if busy := c.runs.underWay(); busy != nil {
		p.Busy = "runs/" + busy.id
	}
	return p
}

// keep fills in what the operator has entered, except the confirmation.
func (p *selectPage) keep(v url.Values) {
	p.Outcome, p.Reason = v.Get("outcome"), v.Get("reason")
	if p.Outcome == appliedWith {
		p.Status, p.ContentType, p.Location, p.Body, p.Empty = v.Get("status"), v.Get("content-type"), v.Get("location"), v.Get("body"), v.Get("empty")
	}
}

// chosen shows a selection and asks for the decision.
func (c *Console) chosen(w http.ResponseWriter, r *http.Request) {
	op := operatorOf(r)
	sel := c.selections.get(r.PathValue("id"), op)
	switch {
	case !op.MaySettle:
		c.fail(w, r, http.StatusForbidden, "You may read only.")
	case sel == nil:
		c.noSelection(w, r)
	case c.runs.get(sel.id) != nil: // the operator has gone back
		seeOther(w, root(r)+"runs/"+sel.id)
	default:
		c.render(w, r, http.StatusOK, "select", c.selectPage(r, sel))
	}
}

func (c *Console) noSelection(w http.ResponseWriter, r *http.Request) {
	c.fail(w, r, http.StatusNotFound, "This instance does not have this selection. It is older than "+words(selectionLife)+", or not yours, or the service has started again, or another instance has it. Nothing was settled. Select the records again.")
}

// lineRow is a line of a run's results, or of a selection.
type lineRow struct {
	ID, Operation, Route string
	Attempt              uint32
	Outcome              operate.Outcome
	Class                string // of the outcome
	Detail, At           string
}

func lineOf(doubt *operate.Doubt, result lineResult) lineRow {
	l := lineRow{ID: doubt.ID.String(), Operation: doubt.ID.OperationID(), Route: operate.OneLine(doubt.Route), Attempt: doubt.Attempt.Number,
		Outcome: cmp.Or(result.outcome, notTried), Detail: operate.OneLine(result.detail)}
	if l.Class = strings.ReplaceAll(string(l.Outcome), " ", "-"); !result.at.IsZero() {
		l.At = operate.Stamp(result.at)
	}
	return l
}

// outcomesInOrder are the outcomes of lines, as the pages list them.
var outcomesInOrder = []operate.Outcome{operate.Settled, operate.Already, operate.Changed, operate.Locked, refused, operate.Failed, notTried}

// countRow counts the lines with an outcome.
type countRow struct {
	Outcome operate.Outcome
	Class   string
	Count   int
	Means   string
	Link    string
	Chosen  bool
}

// meansOf says what an outcome means, and what to do about it.
func meansOf(o operate.Outcome) string {
	switch o {
	case operate.Settled:
		return "The decision stands."
	case operate.Already:
		return "The same decision stood before. An earlier run or another operator made it."
	case operate.Changed:
		return "Another decision stands, another attempt began, or the record is gone. The line says which. Nothing was settled."
	case operate.Locked:
		return "Another process has the lock of the key. Nothing was settled. It is still in the list. Try it again later."
	case refused:
		return "The same decision would be refused for the single record. Nothing was settled, and it is still in the list."
	case operate.Failed:
		return "A server did not answer. If the record is still in the list, it was not settled."
	}
	return "The run did not come to it. It is still in the list."
}

// summary tells about a run.
type summary struct {
	ID, By, Reason, What string
	Began, Ended         string
	Count, Done          int
	Running              bool
	Stopped              string // who stopped it
	Problem              string
	Settled              int // their decision stands
	Left                 int // the others that were tried
}

// whatOf says what was decided.
func whatOf(outcome string) string {
	switch outcome {
	case appliedFound:
		return "It took effect. Repeats get the answer that the service found for each."
	case appliedKept:
		return "It took effect. Repeats get the answer that is kept with each record."
	case appliedWith:
		return "It took effect. Repeats get the answer that was entered."
	}
	return "It did not take effect. The next request with each key runs the handler again."
}

func (r *run) summary() summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := summary{ID: r.id, By: r.By, Reason: operate.OneLine(r.Reason), What: whatOf(r.outcome), Began: operate.Stamp(r.began), Ended: operate.Stamp(r.over),
		Count: len(r.doubts), Done: r.done(), Running: r.over.IsZero(), Stopped: r.stoppedBy, Problem: r.problem}
	s.Settled = r.counts[operate.Settled] + r.counts[operate.Already]
	s.Left = s.Done - s.Settled
	return s
}

// lines are those of an outcome, or all without one.
func (r *run) lines(only operate.Outcome, skip, limit int) (list []lineRow, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.doubts {
		if only != "" && cmp.Or(r.results[i].outcome, notTried) != only {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if len(list) == limit {
			return list, true
		}
		list = append(list, lineOf(&r.doubts[i], r.results[i]))
	}
	return list, false
}

// runPage shows the progress of a run and its results.
type runPage struct {
	page
	summary
	Counts     []countRow
	Lines      []lineRow
	Only       operate.Outcome
	All        string // link
	Prev, Next string // links
	MayStop    bool
	Rest       string // how long it goes on, about
}

func (c *Console) showRun(w http.ResponseWriter, r *http.Request) {
	run := c.runs.get(r.PathValue("id"))
	if run == nil {
		p := errorPage{page: c.page(r, "This run is not known here"), Text: "This instance does not have this run. If the instance that had it has ended, what it had settled stays settled, and the rest is still in the list. Select the rest again: a record that was settled in between is reported as already settled, and is not settled twice. If another instance has the run, this page finds it."}
		p.Refresh = refreshUnknown
		c.render(w, r, http.StatusNotFound, "error", p)
		return
	}
	v := r.URL.Query()
	p := runPage{page: c.page(r, "Run"), summary: run.summary(), Only: operate.Outcome(v.Get("only"))}
	number, _ := strconv.Atoi(v.Get("page"))
	number = max(min(number, mostSelected/linesPerPage), 1)
	link := func(only operate.Outcome, page int) string {
		q := url.Values{}
		if only != "" {
			q.Set("only", string(only))
		}
		if page > 1 {
			q.Set("page", strconv.Itoa(page))
		}
		return "?" + q.Encode()
	}
	var more bool
	p.Lines, more = run.lines(p.Only, (number-1)*linesPerPage, linesPerPage)
	if p.All = link("", 1); more {
		p.Next = link(p.Only, number+1)
	}
	if number > 1 {
		p.Prev = link(p.Only, number-1)
	}
	p.Counts = run.countRows(p.Only, link)
	if p.Running {
		p.Refresh, p.MayStop = refreshRun, p.Operator.MaySettle && p.Stopped == ""
		if took := time.Since(run.began); p.Done > 0 && took > time.Second {
			p.Rest = operate.Brief(took / time.Duration(p.Done) * time.Duration(p.Count-p.Done))
		}
	}
	c.render(w, r, http.StatusOK, "run", p)
}

// countRows counts the results. Outcomes that no line has are left out.
func (r *run) countRows(only operate.Outcome, link func(operate.Outcome, int) string) (list []countRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range outcomesInOrder {
		n := r.counts[o]
		if o == notTried && !r.over.IsZero() {
			n = len(r.doubts) - r.done()
		}
		if n > 0 {
			list = append(list, countRow{Outcome: o, Class: strings.ReplaceAll(string(o), " ", "-"), Count: n, Means: meansOf(o), Link: link(o, 1), Chosen: o == only})
		}
	}
	return list
}

// stopRun ends a run. Decisions that are under way go to their end.
func (c *Console) stopRun(w http.ResponseWriter, r *http.Request) {
	id, op := r.PathValue("id"), operatorOf(r)
	run := c.runs.get(id)
	switch {
	case !op.MaySettle:
		c.fail(w, r, http.StatusForbidden, "You may read only. Nothing was stopped.")
		return
	case run != nil && run.stop(op):
		c.cfg.Logger.InfoContext(r.Context(), "console: an operator stopped a run", "run", id, "operator", op.Name)
	}
	seeOther(w, root(r)+"runs/"+id)
}

// stop reports whether it was this call that stopped the run.
func (r *run) stop(op Operator) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over.IsZero() || r.stoppedBy != "" {
		return false
	}
	r.stoppedBy = op.Name
	r.cancel()
	return true
}

// runsPage lists the runs of this instance.
type runsPage struct {
	page
	Runs []summary
}

func (c *Console) listRuns(w http.ResponseWriter, r *http.Request) {
	p := runsPage{page: c.page(r, "Runs")}
	for _, run := range c.runs.all() {
		p.Runs = append(p.Runs, run.summary())
	}
	c.render(w, r, http.StatusOK, "runs", p)
}

// resultsOfRun sends the lines of a run as CSV.
func (c *Console) resultsOfRun(w http.ResponseWriter, r *http.Request) {
	run := c.runs.get(r.PathValue("id"))
	if run == nil {
		c.fail(w, r, http.StatusNotFound, "This instance does not have this run.")
		return
	}
	var out strings.Builder
	out.WriteString(operate.CSVLine("key_id", "operation_id", "route", "attempt_id", "decision", "result", "detail", "by", "at"))
	lines, _ := run.lines("", 0, len(run.doubts))
	for i, l := range lines {
		out.WriteString(operate.CSVLine(l.ID, l.Operation, l.Route, operate.FormatAttempt(run.doubts[i].Attempt), run.outcome, string(l.Outcome), l.Detail, run.By, l.At))
	}
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="run-`+run.id+`.csv"`)
	_, _ = w.Write([]byte(out.String()))
}
