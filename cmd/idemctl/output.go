package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem"
)

// row is a record in JSON. Times are by the store's clock.
type row struct {
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
	DecidedBy     string              `json:"decided_by,omitempty"`
	Reason        string              `json:"reason,omitempty"`
	Decisions     []decidedRow        `json:"decisions,omitempty"`           // newest first
	Unreadable    string              `json:"unreadable,omitempty"`          // why the rest is missing
	ResponseError string              `json:"response_unreadable,omitempty"` // why the stored response cannot be shown
	Status        int                 `json:"status,omitempty"`              // of the stored response
	Headers       map[string][]string `json:"headers,omitempty"`
	Body          *string             `json:"body,omitempty"`
	BodyBase64    []byte              `json:"body_base64,omitempty"`
}

// decidedRow is a person's decision about an attempt, in JSON.
type decidedRow struct {
	At      time.Time `json:"at"`
	Attempt uint32    `json:"attempt"`
	State   string    `json:"state"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
}

// line is the decision as text.
func (d *decidedRow) line() string {
	text := fmt.Sprintf("%s  attempt %d %s by %s", d.At.Format(time.RFC3339), d.Attempt, d.State, oneLine(d.By))
	if d.Reason != "" {
		text += ": " + oneLine(d.Reason)
	}
	return text
}

// unreadable is shown as the state of an unreadable record.
const unreadable = "unreadable"

func newRow(o *idem.OpenRecord, body bool) row {
	id, r := o.ID, &o.Record
	if o.Err != nil {
		return row{KeyID: id.String(), OperationID: id.OperationID(), State: unreadable, Since: moment(r.Started),
			Started: moment(r.Started), Unreadable: o.Err.Error()}
	}
	out := row{
		KeyID: id.String(), OperationID: id.OperationID(), State: r.State.String(), Kind: r.Kind.String(), Route: r.Route,
		Attempt: r.Attempt.Number, Since: moment(r.Since()), Started: moment(r.Started),
		TokenExpires: moment(r.TokenExpires), ResultExpires: moment(r.ResultExpires), KeyExpires: moment(r.KeyExpires),
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

func (a *app) writeRecord(o *idem.OpenRecord, decided []decidedRow, body bool) error {
	r, out := &o.Record, newRow(o, body)
	out.Decisions = decided
	if a.json {
		return writeJSON(a.stdout, out)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
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
	text("because", oneLine(out.Unreadable))
	when("since", out.Since)
	text("kind", out.Kind)
	text("route", oneLine(out.Route))
	if o.Err == nil {
		line("attempt", out.Attempt)
	}
	when("started", out.Started)
	text("fence", oneLine(out.Fence))
	when("token expires", out.TokenExpires)
	when("result expires", out.ResultExpires)
	when("key expires", out.KeyExpires)
	text("decided by", oneLine(out.DecidedBy))
	text("reason", oneLine(out.Reason))
	for i := range out.Decisions {
		line("decision", out.Decisions[i].line())
	}
	if r.Response != nil {
		line("response", fmt.Sprintf("status %d, %d bytes", out.Status, len(r.Response.Body)))
	}
	text("response", oneLine(out.ResponseError))
	for name, values := range out.Headers {
		for _, v := range values {
			text("header", oneLine(name+": "+v))
		}
	}
	if err := w.Flush(); err != nil || !body || r.Response == nil || r.Response.Omitted {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "\n%s\n", printable(string(r.Response.Body)))
	return err
}

func (a *app) writeList(list []idem.OpenRecord) error {
	if a.json {
		for i := range list {
			if err := writeJSON(a.stdout, newRow(&list[i], false)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STATE\tSINCE\tATTEMPT\tROUTE\tOPERATION\tKEY ID")
	for i := range list {
		r := &list[i].Record
		if err := list[i].Err; err != nil {
			fmt.Fprintf(w, "%s\t%s\t-\t%s\t%s\t%s\n", unreadable, r.Started.UTC().Format(time.RFC3339),
				oneLine(err.Error()), list[i].ID.OperationID(), list[i].ID)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", r.State, r.Since().UTC().Format(time.RFC3339),
			r.Attempt.Number, oneLine(r.Route), list[i].ID.OperationID(), list[i].ID)
	}
	return w.Flush()
}

// Stored text must not steer the operator's terminal or look like other text. So
// control characters, line breaks, changes of direction (U+202E) and invisible
// characters are shown as escapes, or replaced.

// printable makes a text of several lines safe to print.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsGraphic(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// oneLine makes a text safe to print in one line, with escapes as in Go and JSON (\n,
// \u202e).
func oneLine(s string) string {
	var out strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// writeJSON writes an object and a line break. It escapes more than package json,
// which escapes controls below U+0020 only.
func writeJSON(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range string(data) { // unprintable ones are within strings
		switch high, low := utf16.EncodeRune(r); {
		case strconv.IsPrint(r):
			out.WriteRune(r)
		case high == utf8.RuneError:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	out.WriteByte('\n')
	_, err = io.WriteString(w, out.String())
	return err
}
