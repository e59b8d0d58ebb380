package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// confirmLength is how many characters of the operation ID an operator types.
const confirmLength = 6

// The outcomes that an operator chooses from.
const (
	appliedWith   = "applied"     // it took effect, and repeats get the answer in the form
	appliedStored = "stored"      // it took effect, and repeats get the response that was on its way
	notApplied    = "not-applied" // it did not take effect, and no longer can
)

// form has a form for each outcome, as they are shown and as one of them comes back.
type form struct {
	Attempt string // number, nonce and fence of the attempt that the operator has seen
	Choices []choice
	Stored  string // the response on its way, "" without one to replay
	Max     int    // bytes of a reason
	Hint    string // what else a normal answer has

	// What the operator has entered.
	Outcome, Reason, Status, ContentType, Location, Body, Empty string
}

// choice is an outcome that the operator may choose. What has to be typed differs, so that a hand
// that is used to one outcome does not choose the other.
type choice struct{ Outcome, Confirm string }

func (c *Console) newForm(f *operate.Facts) *form {
	rec := &f.Record
	op := f.ID.OperationID()
	end := op[len(op)-confirmLength:]
	normal := Answer{}
	if c.cfg.Answer != nil {
		normal = c.cfg.Answer(rec.Route)
	}
	out := &form{Attempt: formatAttempt(rec.Attempt), Max: idem.MaxReasonBytes, Hint: operate.Printable(normal.Hint),
		Status: strconv.Itoa(cmp.Or(normal.Status, http.StatusCreated)), ContentType: cmp.Or(normal.ContentType, "application/json")}
	if operate.Likely(rec.Route) != operate.OverGRPC { // an answer can be entered
		out.Choices = append(out.Choices, choice{appliedWith, end})
	}
	if resp := rec.Response; resp != nil && !resp.Omitted && rec.ResponseErr == nil {
		out.Stored = responseOf(rec)
		out.Choices = append(out.Choices, choice{appliedStored, end})
	}
	out.Choices = append(out.Choices, choice{notApplied, "again " + end})
	return out
}

// formatAttempt packs an attempt into a hidden field. Equal texts are equal attempts.
func formatAttempt(a idem.Attempt) string {
	return fmt.Sprintf("%d.%s.%d.%s", a.Number, a.Nonce, a.Fence.Token, a.Fence.Domain)
}

// settle decides about an attempt as the operator says.
func (c *Console) settle(w http.ResponseWriter, r *http.Request) {
	id, err := idem.ParseKeyID(r.PathValue("id"))
	op := operatorOf(r)
	switch {
	case err != nil:
		c.fail(w, r, http.StatusNotFound, "This is not a key ID.")
		return
	case !op.MaySettle:
		c.fail(w, r, http.StatusForbidden, "You may read only. Nothing was settled.")
		return
	}
	f, err := c.look.Get(r.Context(), id)
	if err != nil {
		c.unavailable(w, r, err)
		return
	}
	status, problem := c.decide(r.Context(), f, op, r.PostForm)
	if problem == "" || problem == changed { // after a redirect, the browser does not send the form again
		number, _, _ := strings.Cut(r.PostForm.Get("attempt"), ".")
		how := "settled"
		if problem == changed {
			how = "late"
		}
		c.strip.forget()
		seeOther(w, root(r)+"key/"+id.String()+"?"+url.Values{how: {number}, "from": {back(r)}}.Encode())
		return
	}
	p, err := c.tell(r, id) // the record as it is now
	if err != nil {
		c.unavailable(w, r, err)
		return
	}
	p.Problem = problem
	if p.Form != nil && p.Form.Attempt == r.PostForm.Get("attempt") { // otherwise the entries are about another attempt
		p.Form.keep(r.PostForm)
		p.Refused = true
	}
	c.render(w, r, status, "story", p)
}

// keep fills in what the operator has entered, except the confirmation.
func (f *form) keep(v url.Values) {
	f.Outcome, f.Reason, f.Body, f.Location, f.Empty = v.Get("outcome"), v.Get("reason"), v.Get("body"), v.Get("location"), v.Get("empty")
	if f.Outcome == appliedWith { // the other forms have no such fields
		f.Status, f.ContentType = v.Get("status"), v.Get("content-type")
	}
}

// changed is told if the operator's decision is about an attempt that is no longer open.
const changed = "The record has changed while you were reading. This form did nothing. Below is the record as it is now."

// decide settles the attempt of a form. problem says why nothing was settled, and is "" if the
// decision stands.
func (c *Console) decide(ctx context.Context, f *operate.Facts, op Operator, v url.Values) (status int, problem string) {
	rec := &f.Record
	d := idem.Decision{By: op.Name, Reason: strings.TrimSpace(v.Get("reason"))}
	if f.Err != nil || !rec.State.Open() || formatAttempt(rec.Attempt) != v.Get("attempt") {
		return http.StatusConflict, changed
	}
	want := c.newForm(f)
	i := slices.IndexFunc(want.Choices, func(c choice) bool { return c.Outcome == v.Get("outcome") })
	if i < 0 {
		return http.StatusUnprocessableEntity, "Choose what happened. Nothing was settled."
	}
	if d.Reason == "" {
		return http.StatusUnprocessableEntity, "Give a reason. Nothing was settled."
	}
	if err := operate.CheckDecision(d, "Your name", "The reason"); err != nil {
		return http.StatusUnprocessableEntity, err.Error() + ". Nothing was settled."
	}
	if confirm := want.Choices[i].Confirm; strings.Join(strings.Fields(v.Get("confirm")), " ") != confirm {
		return http.StatusUnprocessableEntity, "The confirmation of this outcome is “" + confirm + "”. Nothing was settled."
	}
	resolution, err := resolutionOf(rec, want, v)
	if err != nil {
		return http.StatusUnprocessableEntity, err.Error() + " Nothing was settled."
	}
	policy := idem.Policy{AllowGlobalKeys: true}
	if f.Policy != nil {
		policy = *f.Policy
	}
	settled, err := c.cfg.Engine.Decide(ctx, f.ID, rec.Attempt, resolution, d, &policy)
	log := c.cfg.Log.With(slog.String("operation", f.ID.OperationID()), slog.String("operator", op.Name), slog.Uint64("attempt", uint64(rec.Attempt.Number)))
	if err == nil {
		log.InfoContext(ctx, "console: an operator settled an attempt", "state", settled.State.String())
		return http.StatusOK, ""
	}
	log.WarnContext(ctx, "console: an operator could not settle an attempt", "err", err)
	switch {
	case errors.Is(err, idem.ErrLocked):
		return http.StatusConflict, "The lock of the key is held. Its holder runs, or its session has not timed out yet. Nothing was settled."
	case errors.Is(err, idem.ErrNotOpen):
		return http.StatusConflict, changed
	case errors.Is(err, idem.ErrForeignDomain):
		return http.StatusConflict, "The attempt ran under another lock domain, which is not retired. Its holder may live. Nothing was settled."
	case errors.Is(err, idem.ErrResponseInvalid):
		return http.StatusUnprocessableEntity, "The store cannot keep this answer. Nothing was settled."
	}
	return http.StatusServiceUnavailable, "The lock service or the token store did not answer. Look at the record below: it may have been settled."
}

// resolutionOf reads the outcome of a form. Its error is a sentence for the operator.
func resolutionOf(rec *idem.Record, want *form, v url.Values) (idem.Resolution, error) {
	outcome := v.Get("outcome")
	if outcome == appliedWith {
		resp, err := answerOf(v)
		return idem.Applied(resp), err
	}
	for name, untouched := range map[string]string{"status": want.Status, "content-type": want.ContentType, "location": "", "body": "", "empty": ""} {
		if got := strings.TrimSpace(v.Get(name)); got != "" && got != untouched {
			return idem.Resolution{}, errors.New("You have entered an answer, and chosen an outcome without it. Choose “It took effect”, or remove the answer.") //nolint:revive,staticcheck // a sentence on the page
		}
	}
	if outcome == appliedStored {
		return idem.Applied(*rec.Response), nil
	}
	return idem.NotApplied(), nil
}

// answerOf reads the answer that repeats will get. It accepts what the HTTP middleware replays.
func answerOf(v url.Values) (resp idem.Response, err error) {
	fail := func(text string) (idem.Response, error) { return idem.Response{}, errors.New(text) }
	status, err := strconv.Atoi(strings.TrimSpace(v.Get("status")))
	if err != nil || status < 200 || status > 599 {
		return fail("The status is not a number from 200 to 599.")
	}
	// A browser sends line breaks as CR LF (HTML, section 4.10.21.5).
	body := strings.ReplaceAll(v.Get("body"), "\r\n", "\n")
	never := status == http.StatusNoContent || status == http.StatusNotModified
	switch {
	case body != "" && never:
		return fail(fmt.Sprintf("A response with status %d has no body.", status))
	case body != "" && v.Get("empty") != "":
		return fail("You have entered a body, and ticked that the answer has none.")
	case body == "" && v.Get("empty") == "" && !never:
		return fail("The body is empty. Enter what a normal answer of this route has, or tick that it has no body.")
	}
	if !utf8.ValidString(body) {
		return fail("The body is not UTF-8.")
	}
	resp = idem.Response{Status: status, Header: map[string][]string{}, Body: []byte(body)}
	for field, name := range map[string]string{"content-type": "Content-Type", "location": "Location"} {
		value := strings.TrimSpace(v.Get(field))
		if value == "" || field == "content-type" && body == "" {
			continue
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return fail("The " + name + " is not printable ASCII.")
		}
		if _, _, err := mime.ParseMediaType(value); field == "content-type" && err != nil {
			return fail("The Content-Type is not a media type such as application/json.")
		}
		resp.Header[name] = []string{value}
	}
	if body != "" {
		if err := operate.CheckJSON(v.Get("content-type"), resp.Body); err != nil {
			return fail("The answer is refused: " + err.Error() + ".")
		}
	}
	return resp, nil
}
