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
func (x *Exchange) replay(w http.ResponseWriter, r *idem.Response) {
	if r.Omitted || r.Status < 200 || r.Status > 999 {
		WriteRefusal(w, idem.Refuse(idem.CodeResultUnavailable, errNotReplayable))
		return
	}
	x.allow.put(w.Header(), r.Header)
	w.Header()[ReplayedHeader] = []string{"true"}
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 && bodyAllowed(r.Status) {
		_, _ = w.Write(r.Body)
	}
}

// Problem is the body of a refusal (RFC 9457). It has no type: code tells
// machines what happened, and is stable.
type Problem struct {
	Title  string    `json:"title"`
	Status int       `json:"status"`
	Detail string    `json:"detail"`
	Code   idem.Code `json:"code"`
}

// WriteRefusal answers with a refusal. Nothing of r.Err is sent.
func WriteRefusal(w http.ResponseWriter, r *idem.Refusal) {
	if r.RetryAfter > 0 {
		seconds := (r.RetryAfter + time.Second - 1) / time.Second
		w.Header()["Retry-After"] = []string{strconv.FormatInt(int64(seconds), 10)}
	}
	status := r.Code.HTTPStatus()
	p := Problem{Title: r.Code.Title(), Status: status, Detail: r.Code.Detail(), Code: r.Code}
	writeJSON(w, status, "application/problem+json", p)
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
