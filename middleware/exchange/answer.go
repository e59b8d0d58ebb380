package exchange

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// replayResponse writes a stored outcome. The headers are checked once more, because a
// resolver or an operator may have made them. limit is the length up to which a body is kept in memory.
func (rt *Route) replayResponse(c *Call, r *idem.Response, limit int64) {
	if r.Omitted || r.Status < 200 || r.Status > 999 {
		rt.refuse(c, idem.NewRefusal(idem.CodeResultUnavailable, errors.New("the stored response is not one of HTTP")))
		return
	}
	encoded := len(codingsOf(r)) > 0
	r, err := acceptable(r, c.Request.Header, limit)
	if err != nil {
		rt.refuse(c, idem.NewRefusal(idem.CodeResultUnavailable, err))
		return
	}
	h := c.Writer.Header()
	if encoded {
		varies(h)
	}
	for name, values := range r.Header {
		if rt.replay.Has(name) {
			h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
		}
	}
	h.Set(ReplayedHeader, Replayed)
	c.Writer.WriteHeader(r.Status)
	if len(r.Body) > 0 && bodyAllowed(r.Status) {
		_, _ = c.Writer.Write(r.Body)
	}
}

// refuse answers with a refusal in the route's format. If that writes nothing the
// client would get 200, so the default format takes its place.
func (rt *Route) refuse(c *Call, r *idem.Refusal) {
	if rt.cfg.Refuse != nil {
		w := newWriter(c, math.MaxInt64, math.MaxInt64)
		w.buffered, w.implied = true, r.Code.HTTPStatus()
		setRefusalHeaders(w.header, r)
		if rt.cfg.Refuse(w, c.refusing(), r); w.begun() {
			w.send()
			return
		}
	}
	WriteRefusal(c.Writer, r, rt.cfg.Documentation)
}

// retryAfter reads the pause that a handler asked for (RFC 9110, section 10.2.3). It is 0 if
// the handler did not ask.
func retryAfter(h http.Header) time.Duration {
	const most = 1 << 31 // seconds
	if n, err := strconv.ParseUint(strings.TrimSpace(h.Get("Retry-After")), 10, 64); err == nil {
		return time.Duration(min(n, most)) * time.Second
	}
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type   string    `json:"type,omitempty"`
	Title  string    `json:"title"`
	Status int       `json:"status"`
	Detail string    `json:"detail"`
	Code   idem.Code `json:"code"`

	OperationID     string `json:"operation_id,omitempty"`
	MayHaveHappened bool   `json:"may_have_happened,omitempty"`
}

// WriteRefusal answers with a refusal as the middleware does by default, with status, Retry-After,
// and a problem (RFC 9457) with the code. documentation is that of [Config], or "". The client does
// not see r.Err. Handlers and other middleware can refuse in the same format, and so can
// [Config].Refuse for refusals that it does not change. A handler that answers with a refusal leaves
// its own outcome in doubt.
func WriteRefusal(w http.ResponseWriter, r *idem.Refusal, documentation string) {
	setRefusalHeaders(w.Header(), r)
	p := problem{Title: r.Code.Title(), Status: r.Code.HTTPStatus(), Detail: r.Detail(), Code: r.Code,
		OperationID: r.OperationID, MayHaveHappened: r.MayHaveHappened}
	if documentation != "" {
		p.Type = documentation + "#" + string(r.Code)
		w.Header().Add("Link", "<"+p.Type+`>; rel="describedby"; type="text/html"`)
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

// setRefusalHeaders sets the headers of a refusal in any format.
func setRefusalHeaders(h http.Header, r *idem.Refusal) {
	h.Set("Cache-Control", "no-store")
	if r.RetryAfter > 0 {
		seconds := (r.RetryAfter + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
}

// keyStatus is the answer of a status handler.
type keyStatus struct {
	State       string    `json:"state"`
	OperationID string    `json:"operation_id,omitempty"`
	Kind        string    `json:"kind,omitempty"`
	Attempt     uint32    `json:"attempt,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	Resolver    *bool     `json:"resolver,omitempty"` // of an open attempt
}

// Status answers GET and HEAD with the state of the caller's key. Of the call it needs
// Writer and Request, and uses Context.
func (rt *Route) Status(c Call) {
	if !allowed(&c, http.MethodGet, http.MethodHead) {
		return
	}
	key, scope, err := rt.keyAndScope(&c, &rt.policy)
	var s idem.Status
	if err == nil {
		s, err = rt.engine.Status(c.Request.Context(), scope, key, rt.statusPolicies...)
	}
	if err != nil {
		rt.refuse(&c, adapter.RefusalOf(err))
		return
	}
	answer := keyStatus{State: s.State.String()}
	if s.State != driver.StateNone {
		answer.OperationID, answer.Kind, answer.Attempt = s.OperationID, s.Kind.String(), s.Attempt
		answer.Since, answer.ExpiresAt = s.Since.UTC(), s.ExpiresAt.UTC()
	}
	if s.State.Open() {
		answer.Resolver = &s.ResolvesItself
	}
	writeJSON(c.Writer, http.StatusOK, "application/json", answer)
}

// issuedToken is the answer of a token handler.
type issuedToken struct {
	Token     idem.Key  `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// IssueToken answers POST with a new one-time token for the caller. Of the call it needs
// Writer and Request, and uses Context.
func (rt *Route) IssueToken(c Call, ttl time.Duration) {
	if !allowed(&c, http.MethodPost) {
		return
	}
	scope, err := rt.scope(&c, &rt.policy)
	var token idem.Token
	if err == nil {
		token, err = rt.engine.IssueToken(c.Request.Context(), scope, ttl)
	}
	if err != nil {
		rt.refuse(&c, adapter.RefusalOf(err))
		return
	}
	writeJSON(c.Writer, http.StatusCreated, "application/json", issuedToken{token.Value, token.ExpiresAt.UTC()})
}

// allowed answers every other method with 405.
func allowed(c *Call, methods ...string) bool {
	if slices.Contains(methods, c.Request.Method) {
		return true
	}
	c.Writer.Header().Set("Allow", strings.Join(methods, ", "))
	c.Writer.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

// writeJSON writes an answer that caches must not keep.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil { // strings, numbers and times only
		panic(err)
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
