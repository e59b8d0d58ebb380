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
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// confirmLength is how many characters of the operation ID an operator types.
const confirmLength = 6

// The outcomes that an operator chooses from.
const (
	appliedWith  = "applied"     // it took effect, and repeats get the answer in the form
	appliedFound = "found"       // it took effect, and repeats get the answer that the look-up finds
	notApplied   = "not-applied" // it did not take effect, and no longer can
)

// form has a form for each outcome, as they are shown and as one of them comes back.
type form struct {
	Attempt  string // number, nonce and fence of the attempt that the operator has seen
	Looked   *lookedUp
	Choices  []choice
	Open     string // the outcome whose form is open
	Answer   *shown // what the look-up has for repeats
	Seen     string // stands for Answer
	NoAnswer bool   // an answer cannot be entered, because the route is one of gRPC
	Max      int    // bytes of a reason

	// What the operator has entered.
	Outcome, Reason, Status, ContentType, Location, Body, Empty string
}

// choice is an outcome that the operator may choose. What has to be typed differs, so that a hand
// that is used to one outcome does not choose the other.
type choice struct{ Outcome, Confirm string }

// newForm offers what the look-up allows. An operation that was found took effect, and if its answer
// was found too, repeats get that one. One that could not be looked up is not run again.
func newForm(f *operate.Facts, op Operator, l *lookedUp) *form {
	route := f.Record.Route
	out := &form{Attempt: operate.FormatAttempt(f.Record.Attempt), Looked: l, Max: driver.MaxReasonBytes, NoAnswer: operate.Likely(route) == operate.OverGRPC}
	end := confirmation(f.ID)
	offer := func(outcome, confirm string) { out.Choices = append(out.Choices, choice{outcome, confirm}) }
	resp := l.answer(route)
	switch {
	case l.complete(route):
		out.Answer, out.Seen = showResponse((*driver.Response)(&resp), op.MaySeeResponses), l.digest(route)
		offer(appliedFound, end)
	case out.NoAnswer:
	case l.found():
		offer(appliedWith, end)
	default:
		offer(appliedWith, "done "+end)
	}
	out.fill(&resp, op.MaySeeResponses)
	if l.found() && len(out.Choices) > 0 {
		out.Open = out.Choices[0].Outcome
	}
	if !l.found() && l.Failed == "" {
		offer(notApplied, "again "+end)
	}
	return out
}

// confirmation is the end of an operation ID.
func confirmation(id driver.KeyID) string {
	op := id.OperationID()
	return op[len(op)-confirmLength:]
}

// fill starts the form for an answer. An operator who may not see responses sees no more than the
// kind of it.
func (f *form) fill(resp *idem.Response, all bool) {
	f.Status, f.ContentType = strconv.Itoa(resp.Status), operate.OneLine(cmp.Or(field(resp, "Content-Type"), "application/json"))
	if all {
		f.Location, f.Body = operate.OneLine(field(resp, "Location")), string(resp.Body)
	}
	if f.Body != operate.Printable(f.Body) {
		f.Body = ""
	}
}

// settle decides about an attempt as the operator says.
func (c *Console) settle(w http.ResponseWriter, r *http.Request) {
	id, err := driver.ParseKeyID(r.PathValue("id"))
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
	if problem != "" {
		c.cfg.Logger.WarnContext(r.Context(), "console: a settlement was refused", "operation", id.OperationID(), "operator", op.Name,
			"outcome", r.PostForm.Get("outcome"), "problem", problem)
	}
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

// keep fills in what the operator has entered, except the confirmation. An outcome that is no
// longer offered is left out.
func (f *form) keep(v url.Values) {
	outcome := v.Get("outcome")
	if !slices.ContainsFunc(f.Choices, func(c choice) bool { return c.Outcome == outcome }) {
		return
	}
	f.Open, f.Outcome, f.Reason = outcome, outcome, v.Get("reason")
	if outcome == appliedWith { // the other forms have no such fields
		f.Status, f.ContentType, f.Location, f.Body, f.Empty = v.Get("status"), v.Get("content-type"), v.Get("location"), v.Get("body"), v.Get("empty")
	}
}

// changed is told if the operator's decision is about an attempt that is no longer open.
const changed = "The record has changed while you were reading. This form did nothing. Below is the record as it is now."

// decide settles the attempt of a form. problem says why nothing was settled, and is "" if the
// decision stands.
func (c *Console) decide(ctx context.Context, f *operate.Facts, op Operator, v url.Values) (status int, problem string) {
	rec := &f.Record
	d := driver.Decision{By: op.Name, Reason: strings.TrimSpace(v.Get("reason"))}
	if f.Err != nil || !rec.State.Open() || operate.FormatAttempt(rec.Attempt) != v.Get("attempt") {
		return http.StatusConflict, changed
	}
	if d.Reason == "" {
		return http.StatusUnprocessableEntity, "Give a reason. Nothing was settled."
	}
	if err := operate.CheckDecision(d, "Your name", "The reason"); err != nil {
		return http.StatusUnprocessableEntity, err.Error() + ". Nothing was settled."
	}
	resolution, status, problem := c.resolutionOf(ctx, f, op, v)
	if problem != "" {
		return status, problem + " Nothing was settled."
	}
	policy := idem.Policy{AllowGlobalKeys: true}
	if f.Policy != nil {
		policy = *f.Policy
	}
	settled, err := c.engine.Decide(ctx, f.ID, rec.Attempt, resolution, d, &policy)
	log := c.cfg.Logger.With(slog.String("operation", f.ID.OperationID()), slog.String("operator", op.Name), slog.Uint64("attempt", uint64(rec.Attempt.Number)))
	switch {
	case err == nil:
		log.InfoContext(ctx, "console: an operator settled an attempt", "state", settled.State.String())
		return http.StatusOK, ""
	case errors.Is(err, driver.ErrLocked):
		return http.StatusConflict, "The lock of the key is held. Its holder runs, or its session has not timed out yet. Nothing was settled."
	case errors.Is(err, idem.ErrNotOpen):
		return http.StatusConflict, changed
	case errors.Is(err, idem.ErrForeignDomain):
		return http.StatusConflict, "The attempt ran under another lock domain, which is not retired. Its holder may live. Nothing was settled."
	case errors.Is(err, driver.ErrResponseInvalid):
		return http.StatusUnprocessableEntity, "The store cannot keep this answer. Nothing was settled."
	}
	log.WarnContext(ctx, "console: an operator could not settle an attempt", "err", err)
	return http.StatusServiceUnavailable, "The lock service or the token store did not answer. Look at the record below: it may have been settled."
}

// resolutionOf reads the outcome of a form. problem is a sentence for the operator. It looks the
// operation up once more, because the page may be old.
func (c *Console) resolutionOf(ctx context.Context, f *operate.Facts, op Operator, v url.Values) (r idem.Resolution, status int, problem string) {
	outcome, route := v.Get("outcome"), f.Record.Route
	l := c.lookUp(ctx, route, f.ID.OperationID())
	now := newForm(f, op, l)
	i := slices.IndexFunc(now.Choices, func(c choice) bool { return c.Outcome == outcome })
	if i < 0 {
		status, problem = now.notOffered(outcome)
		return r, status, problem
	}
	if confirm := now.Choices[i].Confirm; strings.Join(strings.Fields(v.Get("confirm")), " ") != confirm {
		return r, http.StatusUnprocessableEntity, "The confirmation of this outcome is “" + confirm + "”."
	}
	if outcome == appliedWith {
		resp, err := answerOf(v)
		if err != nil {
			return r, http.StatusUnprocessableEntity, err.Error()
		}
		return idem.Applied(resp), 0, ""
	}
	for _, name := range []string{"status", "content-type", "location", "body", "empty"} {
		if strings.TrimSpace(v.Get(name)) != "" {
			return r, http.StatusUnprocessableEntity, "You have entered an answer, and chosen an outcome without it. Choose “It took effect”, or remove the answer."
		}
	}
	switch {
	case outcome == notApplied:
		return idem.NotApplied(), 0, ""
	case v.Get("seen") != now.Seen:
		return r, http.StatusConflict, "The service finds something else now."
	}
	return idem.Applied(l.answer(route)), 0, ""
}

// notOffered says why an outcome cannot be chosen.
func (f *form) notOffered(outcome string) (status int, problem string) {
	switch {
	case outcome == appliedFound:
		return http.StatusConflict, "The service finds something else now."
	case outcome != appliedWith && outcome != notApplied:
		return http.StatusUnprocessableEntity, "Choose what happened."
	case outcome == appliedWith && f.Answer == nil:
		return http.StatusUnprocessableEntity, "An answer of gRPC cannot be entered here."
	case f.Looked.found():
		return http.StatusConflict, "The service found: " + operate.OneLine(f.Looked.Says) + ". So it took effect."
	}
	return http.StatusServiceUnavailable, "The look-up failed: " + f.Looked.Failed + "."
}

// answerOf reads the answer that repeats will get. It accepts what the HTTP middleware replays, and
// what tells a client that its request took effect.
func answerOf(v url.Values) (resp idem.Response, err error) {
	fail := func(text string) (idem.Response, error) { return idem.Response{}, errors.New(text) }
	status, err := strconv.Atoi(strings.TrimSpace(v.Get("status")))
	switch {
	case err != nil || status < 200 || status > 599:
		return fail("The status is not a number from 200 to 399.")
	case !operate.TookEffect(status):
		return fail(fmt.Sprintf("It took effect, and status %d tells the client that it failed. Enter one from 200 to 399.", status))
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
