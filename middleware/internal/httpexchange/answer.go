package httpexchange

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// ReplayedHeader marks a response that is a stored outcome.
const ReplayedHeader = "Idempotent-Replayed"

var errNotReplayable = errors.New("the stored response is not one of HTTP")

// replay writes a stored outcome. It is the same for every repeat, but for the
// headers of the server itself.
func (x *Exchange) replay(c *Call, r *idem.Response) {
	if r.Omitted || r.Status < 200 || r.Status > 999 {
		x.refuse(c, idem.Refuse(idem.CodeResultUnavailable, errNotReplayable))
		return
	}
	w := c.Writer
	x.allow.put(w.Header(), r.Header)
	w.Header()[ReplayedHeader] = []string{"true"}
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 && bodyAllowed(r.Status) {
		_, _ = w.Write(r.Body)
	}
}

// Problem is the body of a refusal (RFC 9457). Code tells machines what happened,
// and is stable. Type is there where there is documentation to point to.
type Problem struct {
	Type   string    `json:"type,omitempty"`
	Title  string    `json:"title"`
	Status int       `json:"status"`
	Detail string    `json:"detail"`
	Code   idem.Code `json:"code"`
}

// refuse answers with a refusal in the route's format. A format that writes
// nothing would tell the client 200, and is not taken at its word.
func (x *Exchange) refuse(c *Call, r *idem.Refusal) {
	if c.Refuse != nil {
		setRefusalHeaders(c.Writer.Header(), r)
		if c.Refuse(r) {
			return
		}
	}
	WriteRefusal(c.Writer, r, x.cfg.Documentation)
}

// WriteRefusal answers with a refusal that points to its documentation, unless
// that is "". Nothing of r.Err is sent.
func WriteRefusal(w http.ResponseWriter, r *idem.Refusal, documentation string) {
	setRefusalHeaders(w.Header(), r)
	status := r.Code.HTTPStatus()
	p := Problem{Title: r.Code.Title(), Status: status, Detail: r.Detail(), Code: r.Code}
	if documentation != "" {
		p.Type = documentation + "#" + string(r.Code)
		w.Header().Add("Link", "<"+p.Type+`>; rel="describedby"; type="text/html"`)
	}
	writeJSON(w, status, "application/problem+json", p)
}

// setRefusalHeaders sets what a refusal in any format has.
func setRefusalHeaders(h http.Header, r *idem.Refusal) {
	h["Cache-Control"] = []string{"no-store"}
	if r.RetryAfter > 0 {
		seconds := (r.RetryAfter + time.Second - 1) / time.Second
		h["Retry-After"] = []string{strconv.FormatInt(int64(seconds), 10)}
	}
}

// writeJSON writes an answer that is not to be kept by caches.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil { // strings, numbers and times only
		panic(err)
	}
	h := w.Header()
	delete(h, "Content-Length")
	h["Content-Type"] = []string{contentType}
	h["Cache-Control"] = []string{"no-store"}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
