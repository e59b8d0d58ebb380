package console

import (
	"context"
	"encoding/hex"
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

// query is what a list was asked for.
type query struct {
	View  view
	State string // "", pending or unknown
	Route string // part of the route's name
	Older time.Duration
	after *driver.OpenCursor
}

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
	q.after = parseCursor(v.Get("after"))
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
	if after != nil {
		set("after", formatCursor(after))
	}
	return "?" + v.Encode()
}

// self is the link to the page that was asked for, "" for the one that a new visitor sees.
func (q query) self() string {
	if link := q.link(q.after); link != "?" {
		return link
	}
	return ""
}

func formatCursor(c *driver.OpenCursor) string {
	return strconv.FormatInt(c.Started.UnixNano(), 10) + "-" + c.ID.String()
}

// parseCursor returns nil for anything that formatCursor has not made.
func parseCursor(s string) *driver.OpenCursor {
	at, id, _ := strings.Cut(s, "-")
	nanos, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil
	}
	c := &driver.OpenCursor{Started: time.Unix(0, nanos).UTC()}
	if len(id) != hex.EncodedLen(len(c.ID)) {
		return nil
	}
	if c.ID, err = driver.ParseKeyID(id); err != nil {
		return nil
	}
	return c
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
	open := driver.OpenQuery{OlderThan: q.Older, Limit: 4 * rowsPerPage, After: q.after}
	if q.State != "" {
		open.State, _ = driver.ParseState(q.State) // parseQuery has checked it
	}
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
		if open.After = page.Next; open.After == nil {
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
}

func (c *Console) inbox(w http.ResponseWriter, r *http.Request) {
	q := parseQuery(r.URL.Query())
	l, err := c.list(r.Context(), q)
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
	p.Doubts, p.All = query{Route: q.Route}.link(nil), query{View: all, Route: q.Route}.link(nil)
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
