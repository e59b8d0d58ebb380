package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

const (
	rowsPerPage = 25
	// mostScanned bounds the records that are read for one page, when a filter leaves most of
	// them out.
	mostScanned = 2000
	// young is the age below which a pending record counts as running without a look at its
	// lock. Most handlers are done by then.
	young = 10 * time.Second
)

// view is which open records a list shows.
type view string

const (
	doubts view = ""    // unknown ones, and pending ones whose holder is gone
	all    view = "all" // every open one
)

// keptFilter is which records a list shows, by the response that was on its way.
type keptFilter string

// The values of the filter. A record without a response that could be replayed is in keptNone.
const (
	keptSuccess keptFilter = "success" // it tells the client that its request took effect
	keptOther   keptFilter = "other"   // it tells the client something else
	keptNone    keptFilter = "none"
)

// has reports whether the filter lets a record through.
func (k keptFilter) has(rec *driver.Record) bool {
	switch k {
	case keptSuccess:
		return operate.KeepsSuccess(rec)
	case keptOther:
		return operate.KeepsAnswer(rec) && !operate.KeepsSuccess(rec)
	case keptNone:
		return !operate.KeepsAnswer(rec)
	}
	return true
}

// query is what a list was asked for.
type query struct {
	View        view
	State       string // "", pending or unknown
	Route       string // part of the route's name
	Older       time.Duration
	From, Until time.Time // of the attempt's start, in whole seconds; From is included and Until is not
	Kept        keptFilter
	after       *driver.OpenCursor
}

// timeForms are those of <input type="datetime-local">, which leaves out seconds that are zero, of a date, and
// of RFC 3339.
var timeForms = []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.DateOnly, time.RFC3339}

// parseTime returns the zero time for anything else.
func parseTime(s string) time.Time {
	for _, form := range timeForms {
		if t, err := time.Parse(form, strings.TrimSpace(s)); err == nil && t.Year() >= 1970 && t.Year() < 2200 {
			return t.UTC().Truncate(time.Second)
		}
	}
	return time.Time{}
}

// formatTime writes a time for a field of a form.
func formatTime(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.Second() == 0:
		return t.Format(timeForms[0])
	}
	return t.Format(timeForms[1])
}

// FromText and UntilText are for the fields of the filter.
func (q query) FromText() string  { return formatTime(q.From) }
func (q query) UntilText() string { return formatTime(q.Until) }

// Ages of the filter.
var ages = []time.Duration{0, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour}

// parseQuery ignores what it does not know.
func parseQuery(v url.Values) (q query) {
	if view(v.Get("view")) == all {
		q.View = all
	}
	if s, err := driver.ParseState(v.Get("state")); err == nil && s.Open() {
		q.State = s.String()
	}
	if d, err := time.ParseDuration(v.Get("older")); err == nil && d > 0 {
		q.Older = d
	}
	q.Route = strings.TrimSpace(operate.OneLine(v.Get("route")))
	q.From, q.Until = parseTime(v.Get("from")), parseTime(v.Get("until"))
	if k := keptFilter(v.Get("kept")); k == keptSuccess || k == keptOther || k == keptNone {
		q.Kept = k
	}
	if after, err := operate.ParseCursor(v.Get("after")); err == nil {
		q.after = &after
	}
	return q
}

// link is the query of a URL, with the cursor given.
func (q query) link(after *driver.OpenCursor) string {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("view", string(q.View))
	set("state", q.State)
	set("route", q.Route)
	if q.Older > 0 {
		set("older", q.Older.String())
	}
	set("from", formatTime(q.From))
	set("until", formatTime(q.Until))
	set("kept", string(q.Kept))
	if after != nil {
		set("after", operate.FormatCursor(*after))
	}
	return "?" + v.Encode()
}

// open is the query of a store for a page of at most limit records.
func (q query) open(limit int) driver.OpenQuery {
	open := driver.OpenQuery{OlderThan: q.Older, Limit: limit, After: q.after}
	if q.State != "" {
		open.State, _ = driver.ParseState(q.State) // parseQuery has checked it
	}
	if !q.From.IsZero() {
		// Stores keep whole microseconds at most. So no record begins between this place and From.
		from := &driver.OpenCursor{Started: q.From.Add(-time.Microsecond)}
		for i := range from.ID {
			from.ID[i] = 0xff
		}
		if q.after == nil || q.after.Compare(*from) < 0 {
			open.After = from
		}
	}
	return open
}

// over reports whether the query selects nothing that began at t or later.
func (q query) over(t time.Time) bool { return !q.Until.IsZero() && !t.Before(q.Until) }

// self is the link to the page that was asked for, "" for the one that a new visitor sees.
func (q query) self() string {
	if link := q.link(q.after); link != "?" {
		return link
	}
	return ""
}

// listing is one page of open records.
type listing struct {
	Rows    []*operate.Facts
	Next    *driver.OpenCursor // nil at the end
	Scanned int
	Cut     bool // the page ends because so many records were left out
	Running int  // attempts that were left out, because they run or seem to
	Partial bool // a part of the store did not answer
}

// list reads one page. It looks at the locks of the records that it shows, and for the doubts of
// those that may be running.
func (c *Console) list(ctx context.Context, q query) (l listing, err error) {
	open := q.open(4 * rowsPerPage)
	for {
		page, err := c.store.ListOpen(ctx, open)
		if err != nil && len(page.Records) == 0 && page.Next == nil && l.Scanned == 0 {
			return l, err
		}
		l.Partial = l.Partial || err != nil
		facts, err := c.look.Look(ctx, c.candidates(page.Records, q, &l))
		if err != nil {
			return l, err
		}
		l.Scanned += len(page.Records)
		for _, f := range facts {
			if q.View == doubts && f.Err == nil && f.Record.State == driver.StatePending && f.Lock == operate.LockOfAttempt {
				l.Running++
				continue
			}
			if len(l.Rows) == rowsPerPage {
				last := l.Rows[rowsPerPage-1].Cursor()
				l.Next = &last
				return l, nil
			}
			l.Rows = append(l.Rows, f)
		}
		if open.After = page.Next; open.After == nil || q.over(open.After.Started) {
			return l, nil
		}
		if l.Scanned >= mostScanned {
			l.Next, l.Cut = open.After, true
			return l, nil
		}
	}
}

// candidates drops the records that the query leaves out whatever their locks say.
func (c *Console) candidates(rows []driver.OpenRecord, q query, l *listing) (kept []driver.OpenRecord) {
	now := time.Now()
	for i := range rows {
		rec := &rows[i].Record
		switch {
		case q.over(rec.Started):
			return kept
		case rows[i].Err == nil && !q.Kept.has(rec):
		case q.Route != "" && !strings.Contains(strings.ToLower(rec.Route), strings.ToLower(q.Route)):
		case q.View == doubts && rows[i].Err == nil && rec.State == driver.StatePending && now.Sub(rec.Started) < young:
			l.Running++
		default:
			kept = append(kept, rows[i])
		}
	}
	return kept
}

// inboxPage is the first page of the console.
type inboxPage struct {
	page
	Query   query
	Ages    []ageChoice
	Rows    []row
	Doubts  string // links of the two views
	All     string
	Self    string // link to this page
	First   string // link; "" on the first page
	Next    string // link; "" on the last page
	Cut     bool
	Scanned int
	Running int
	Partial bool
	Settles bool   // the operator may settle what the list selects
	Filter  string // the query of the list without its page, for the form
	Seen    int64  // when the list was read, in microseconds by the store's clock, for the form
	MostAll int    // records that one selection has at most
}

type ageChoice struct {
	Value, Text string
	Chosen      bool
}

// row is a line of the list.
type row struct {
	ID, Operation, State, Route, Age, Since, Holder, Next, Said, Response string
	Attempt                                                               uint32
	Fence                                                                 string
	Found                                                                 string // by the service's look-up, in its words
	Pick                                                                  string // stands for the attempt in a selection, "" if it cannot be selected
}

func (c *Console) inbox(w http.ResponseWriter, r *http.Request) {
	q := parseQuery(r.URL.Query())
	seen, err := c.look.Clock(r.Context())
	var l listing
	if err == nil {
		l, err = c.list(r.Context(), q)
	}
	if err != nil {
		c.unavailable(w, r, err)
		return
	}
	c.strip.sees(len(l.Rows) > 0)
	p := inboxPage{page: c.page(r, "Outcomes in doubt"), Query: q}
	if q.View == all {
		p.Title = "Open records"
	}
	said := c.events.resolverSaid()
	for _, f := range l.Rows {
		p.Rows = append(p.Rows, rowOf(f, said))
	}
	if q.View == doubts && p.Operator.MaySettle {
		p.Filter, p.MostAll, p.Seen = q.link(nil), mostSelected, seen.UnixMicro()
		found := c.lookUpRows(r.Context(), l.Rows, p.Operator)
		for i, f := range l.Rows {
			if p.Rows[i].Found = found[i]; f.Err == nil && whyNot(f, p.Operator) == "" {
				p.Rows[i].Pick, p.Settles = pickOf(f), true
			}
		}
	}
	p.Cut, p.Scanned, p.Running, p.Partial = l.Cut, l.Scanned, l.Running, l.Partial
	p.Self = q.self()
	if l.Next != nil {
		p.Next = q.link(l.Next)
	}
	if q.after != nil {
		p.First = q.link(nil)
	}
	for _, d := range ages {
		choice := ageChoice{Value: d.String(), Text: "at least " + words(d), Chosen: d == q.Older}
		if d == 0 {
			choice.Value, choice.Text = "", "any age"
		}
		p.Ages = append(p.Ages, choice)
	}
	other := query{Route: q.Route, From: q.From, Until: q.Until}
	p.Doubts = other.link(nil)
	other.View = all
	p.All = other.link(nil)
	c.render(w, r, http.StatusOK, "inbox", p)
}

func rowOf(f *operate.Facts, heard map[attemptOf]string) row {
	rec, story := &f.Record, f.Story()
	said := saidOf(rec, heard[attemptOf{f.ID, rec.Attempt.Number}])
	out := row{ID: f.ID.String(), Operation: f.ID.OperationID(), State: rec.State.String(), Route: operate.OneLine(rec.Route),
		Age: operate.Brief(story.Age), Since: operate.Stamp(rec.Since()), Holder: operate.OneLine(story.Holder), Next: operate.OneLine(story.Next),
		Attempt: rec.Attempt.Number, Fence: operate.OneLine(rec.Attempt.Fence.String()), Said: operate.OneLine(said), Response: responseOf(rec)}
	if f.Err != nil {
		out.State, out.Since, out.Fence = "unreadable", operate.Stamp(rec.Started), ""
		out.Holder, out.Said = "", ""
	}
	return out
}

// saidOf is what a resolver said about the attempt, from this instance's memory or from the
// record.
func saidOf(rec *driver.Record, said string) string {
	if said == "" && rec.State == driver.StateUnknown && rec.Decision.By == "resolver" {
		return rec.Decision.Reason
	}
	return said
}

// responseOf describes the answer of the handler, without its content.
func responseOf(rec *driver.Record) string {
	switch {
	case rec.ResponseErr != nil:
		return "unreadable"
	case rec.Response == nil:
		return ""
	case rec.Response.Omitted:
		return "status " + strconv.Itoa(rec.Response.Status) + ", not kept"
	}
	return summaryOf(rec.Response)
}

func summaryOf(resp *driver.Response) string {
	size := strconv.Itoa(len(resp.Body)) + " bytes"
	if len(resp.Body) == 1 {
		size = "1 byte"
	}
	return "status " + strconv.Itoa(resp.Status) + ", " + size
}

// words writes an age of the filter.
func words(d time.Duration) string {
	switch d {
	case time.Minute:
		return "1 minute"
	case time.Hour:
		return "1 hour"
	case 24 * time.Hour:
		return "1 day"
	}
	return strconv.Itoa(int(d/time.Minute)) + " minutes"
}
