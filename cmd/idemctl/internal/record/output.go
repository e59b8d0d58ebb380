package record

import (
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// Row is a record in JSON. Times are by the store's clock.
type Row struct {
	KeyID         string              `json:"key_id"`
	OperationID   string              `json:"operation_id"`
	State         string              `json:"state"`
	Kind          string              `json:"kind"`
	Route         string              `json:"route,omitempty"`
	Attempt       uint32              `json:"attempt"`
	Since         *time.Time          `json:"since"`
	Started       *time.Time          `json:"started,omitempty"`
	Fence         string              `json:"fence,omitempty"`
	TokenExpires  *time.Time          `json:"token_expires,omitempty"`
	ResultExpires *time.Time          `json:"result_expires,omitempty"`
	KeyExpires    *time.Time          `json:"key_expires,omitempty"`
	ResultTTL     float64             `json:"result_ttl_seconds,omitempty"` // of an open attempt, from its settlement on
	KeyTTL        float64             `json:"key_ttl_seconds,omitempty"`
	DecidedBy     string              `json:"decided_by,omitempty"`
	Reason        string              `json:"reason,omitempty"`
	Decisions     []Decided           `json:"decisions,omitempty"`           // newest first
	Unreadable    string              `json:"unreadable,omitempty"`          // why the rest is missing
	ResponseError string              `json:"response_unreadable,omitempty"` // why the stored response cannot be shown
	Status        int                 `json:"status,omitempty"`              // of the stored response
	Headers       map[string][]string `json:"headers,omitempty"`
	Body          *string             `json:"body,omitempty"`
	BodyBase64    []byte              `json:"body_base64,omitempty"`

	AgeSeconds  float64 `json:"age_seconds"`            // since Since
	HolderAlive *bool   `json:"holder_alive,omitempty"` // of an open attempt, if it can be told
	HolderHost  string  `json:"holder_host,omitempty"`  // of the process with the lock
	HolderPID   int     `json:"holder_pid,omitempty"`
	Holder      string  `json:"holder,omitempty"` // the same as a text
	Next        string  `json:"next,omitempty"`   // what happens by itself
	Settle      string  `json:"settle,omitempty"` // the command that settles the attempt
}

// Decided is a person's decision about an attempt, in JSON.
type Decided struct {
	At      time.Time `json:"at"`
	Attempt uint32    `json:"attempt"`
	State   string    `json:"state"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
}

// line is the decision as text.
func (d *Decided) line() string {
	what := d.State
	if what == driver.StateExpired.String() {
		what = "answer removed"
	}
	text := fmt.Sprintf("%s  attempt %d %s by %s", d.At.Format(time.RFC3339), d.Attempt, what, operate.OneLine(d.By))
	if d.Reason != "" {
		text += ": " + operate.OneLine(d.Reason)
	}
	return text
}

// unreadable is shown as the state of an unreadable record.
const unreadable = "unreadable"

func newRow(f *operate.Facts, body bool) Row {
	out, story := newRecordRow(&f.OpenRecord, body), f.Story()
	out.AgeSeconds, out.Holder, out.Next, out.Settle = story.Age.Seconds(), story.Holder, story.Next, story.Settle
	out.HolderHost, out.HolderPID = f.Holder.Host, f.Holder.PID
	if alive, known := f.Alive(); known {
		out.HolderAlive = &alive
	}
	return out
}

// newRecordRow is the record alone.
func newRecordRow(o *driver.OpenRecord, body bool) Row {
	id, r := o.ID, &o.Record
	if o.Err != nil {
		return Row{KeyID: id.String(), OperationID: id.OperationID(), State: unreadable, Since: moment(r.Started),
			Started: moment(r.Started), Unreadable: o.Err.Error()}
	}
	out := Row{
		KeyID: id.String(), OperationID: id.OperationID(), State: r.State.String(), Kind: r.Kind.String(), Route: r.Route,
		Attempt: r.Attempt.Number, Since: moment(r.Since()), Started: moment(r.Started),
		TokenExpires: moment(r.TokenExpires), ResultExpires: moment(r.ResultExpires), KeyExpires: moment(r.KeyExpires),
		ResultTTL: r.ResultTTL.Seconds(), KeyTTL: r.KeyTTL.Seconds(),
		DecidedBy: r.Decision.By, Reason: r.Decision.Reason,
	}
	if r.Attempt.Number > 0 {
		out.Fence = r.Attempt.Fence.String()
	}
	if r.ResponseErr != nil {
		out.ResponseError = r.ResponseErr.Error()
	}
	if r.Response == nil {
		return out
	}
	out.Status = r.Response.Status
	if body && !r.Response.Omitted {
		out.Headers = r.Response.Header
		if utf8.Valid(r.Response.Body) {
			text := string(r.Response.Body)
			out.Body = &text
		} else {
			out.BodyBase64 = r.Response.Body
		}
	}
	return out
}

// moment is nil for the zero time, so that JSON leaves it out.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// printer prints records.
type printer struct{ io *cli.Streams }

func (c printer) record(f *operate.Facts, decided []driver.Decided, body bool) error {
	r, out := &f.Record, newRow(f, body)
	for _, d := range decided {
		out.Decisions = append(out.Decisions, Decided{d.At.UTC(), d.Attempt, d.State.String(), d.By, d.Reason})
	}
	if c.io.JSON {
		return c.io.WriteJSON(out)
	}
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	when := func(name string, t *time.Time) {
		if t != nil {
			line(name, t.Format(time.RFC3339Nano))
		}
	}
	text := func(name, value string) {
		if value != "" {
			line(name, value)
		}
	}
	line("key id", out.KeyID)
	line("operation", out.OperationID)
	line("state", out.State)
	text("because", operate.OneLine(out.Unreadable))
	when("since", out.Since)
	if out.Since != nil {
		line("age", operate.Brief(f.Story().Age))
	}
	text("kind", out.Kind)
	text("route", operate.OneLine(out.Route))
	if f.Err == nil {
		line("attempt", out.Attempt)
	}
	when("started", out.Started)
	text("fence", operate.OneLine(out.Fence))
	when("token expires", out.TokenExpires)
	when("result expires", out.ResultExpires)
	when("key expires", out.KeyExpires)
	if r.KeyTTL > 0 {
		line("remembers", fmt.Sprintf("the result for %v and the key for %v, once it is settled", r.ResultTTL, r.KeyTTL))
	}
	text("decided by", operate.OneLine(out.DecidedBy))
	text("reason", operate.OneLine(out.Reason))
	for i := range out.Decisions {
		line("decision", out.Decisions[i].line())
	}
	if r.Response != nil {
		line("response", fmt.Sprintf("status %d, %d bytes", out.Status, len(r.Response.Body)))
	}
	text("response", operate.OneLine(out.ResponseError))
	text("holder", operate.OneLine(out.Holder))
	text("next", operate.OneLine(out.Next))
	text("settle", operate.OneLine(out.Settle))
	for name, values := range out.Headers {
		for _, v := range values {
			text("header", operate.OneLine(name+": "+v))
		}
	}
	if err := w.Flush(); err != nil || !body || r.Response == nil || r.Response.Omitted {
		return err
	}
	_, err := fmt.Fprintf(c.io.Out, "\n%s\n", operate.Printable(string(r.Response.Body)))
	return err
}

func (c printer) list(list []*operate.Facts) error {
	if c.io.JSON {
		for _, f := range list {
			if err := c.io.WriteJSON(newRow(f, false)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(c.io.Out, tableLine, "STATE", "AGE", "ATT", "HOLDER", "ROUTE", "KEY ID"); err != nil {
		return err
	}
	for _, f := range list {
		state, attempt, route := f.Record.State.String(), strconv.FormatUint(uint64(f.Record.Attempt.Number), 10), operate.OneLine(f.Record.Route)
		if f.Err != nil {
			state, attempt, route = unreadable, "-", "-"
		}
		if _, err := fmt.Fprintf(c.io.Out, tableLine, state, operate.Brief(f.Story().Age), attempt, briefHolder(f), cut(route, routeWidth), f.ID); err != nil {
			return err
		}
		if f.Err != nil {
			fmt.Fprintf(c.io.Out, "  because %s\n", cut(operate.OneLine(f.Err.Error()), tableWidth-len("  because ")))
		}
	}
	return nil
}

// A table of records fits tableWidth columns, whatever is in it.
const (
	tableWidth = 120
	routeWidth = 20
	tableLine  = "%-10s  %-7s  %-3s  %-6s  %-20s  %s\n"
)

// briefHolder is what becomes of the holder in one word.
func briefHolder(f *operate.Facts) string {
	switch alive, known := f.Alive(); {
	case !known:
		return "?"
	case alive:
		return "alive"
	}
	return "gone"
}

// cut shortens a text in its middle.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n/2]) + "…" + string(r[len(r)-(n-n/2-1):])
}
