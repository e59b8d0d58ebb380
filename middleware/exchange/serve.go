package exchange

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// Call is one request as an adapter hands it over. Writer, Request and Next are
// required.
type Call struct {
	// Writer sends the answer. An informational status goes to the innermost writer
	// that Unwrap methods lead to. A writer whose WriteHeader only notes the status has
	// a method WriteHeaderNow, as Gin's has.
	Writer http.ResponseWriter
	// Buffered says that Writer sends nothing before Serve has returned, as on
	// fasthttp. A response of any length can then be replaced until the end.
	Buffered bool
	// Request is the request. Its context is the parent of the handler's context.
	Request *http.Request
	// Kept is the body if middleware in front has read it from Request and the framework has kept
	// it, as Gin does. It counts if the body in Request is used up. Nil stands for none.
	Kept []byte
	// Context is the context of Request with what the framework knows beside it. Policy.Scope gets
	// it, and the functions of [Config] get a request with it. Nil stands for the context of Request.
	Context context.Context
	// Refusing is the context for [Config].Refuse. It leads to no other way to answer than the writer that
	// Refuse gets. Nil stands for Context.
	Refusing context.Context
	// Route is the pattern that matched. It names the policy if the policy has no
	// Name.
	Route string
	// Unrouted says that the framework has found no route for the request. An answer of 404 or 405
	// is then no outcome, because it may be another one after a deployment. It is not stored, and
	// the key stays free ([idem.NotAdmitted]).
	Unrouted bool
	// Misplaced looks for middleware that would answer for a handler that still runs, and returns
	// an error that names it. The request is then refused as internal, with nothing consumed. It is
	// called once the request is known to need a key. Nil stands for no check.
	Misplaced func() error
	// Next runs the handler with a request whose context is that of the execution, and
	// writes its answer to w. Serve calls it at most once unless RunAgain is set, in its
	// own goroutine. A panic passes through Serve after it was recorded.
	Next func(w *Writer, r *http.Request)
	// RunAgain says that Next can run the handler again, after the joined transaction of the run
	// before was rolled back because of a conflict ([idem.WithConflictRetries]). Next then gets a new
	// Writer, and the request as it was before the first run. The adapter has to do the same for
	// what its framework keeps beside the request.
	RunAgain bool
	// Early is called right before a part of the response is sent while the handler runs. Nil
	// stands for nothing to do.
	Early func()
}

// Serve answers a request. It returns false, without an answer, if the adapter has to
// run the handler on Call.Request itself. The request then needs no key, or is a part of
// the running execution of its key.
//
// Serve panics with the handler's panic. It panics with [http.ErrAbortHandler] if the
// client has received a part of a response that is not the outcome. It never does so
// for a buffered call.
func (rt *Route) Serve(c Call) bool {
	if !rt.protects(&c) {
		return false
	}
	ctx, policy := c.Request.Context(), rt.policyOf(&c)
	if c.Misplaced != nil {
		if err := c.Misplaced(); err != nil {
			rt.refuseAt(ctx, &c, policy, idem.NewRefusal(idem.CodeInternal, err))
			return true
		}
	}
	var op idem.Operation
	in, part := input{request: c.Request}, false
	var err error
	if rt.withoutKey(&c) {
		op, in.body, in.gone, err = rt.readWithoutKey(&c, policy)
	} else {
		op, in.body, err = rt.read(&c, policy)
	}
	if err == nil {
		part, err = rt.engine.Nested(ctx, &op)
	}
	switch {
	case err != nil:
		rt.refuseAt(ctx, &c, policy, adapter.RefusalOf(err))
	case part:
		if !in.gone {
			restore(c.Request, in.body)
		}
		return false
	default:
		rt.do(&c, op, in)
	}
	return true
}

// refuseAt refuses a request that the engine does not see, and reports that.
func (rt *Route) refuseAt(ctx context.Context, c *Call, p *idem.Policy, r *idem.Refusal) {
	rt.engine.ReportRefused(ctx, p.Name, r)
	rt.refuse(c, r)
}

// do gives a request to the engine and sends the answer. Nothing of a response that is
// kept is sent before the engine has settled the outcome.
func (rt *Route) do(c *Call, op idem.Operation, in input) {
	w := rt.newWriter(c, op.Policy)
	ran, returned := false, false
	op.RunOnce = !c.RunAgain || in.gone
	run, keyed := rt.engine.Do, op.Key != ""
	if !keyed {
		run = rt.engine.DoWithoutKey
	}
	defer in.end()
	defer func() {
		if !returned { // the handler panicked
			w.breakOff()
		}
	}()
	res, err := run(c.Request.Context(), op, func(ctx context.Context) (idem.Response, error) {
		if ran { // again, after a conflict
			if w.elsewhere {
				return idem.Response{Status: http.StatusInternalServerError}, errSentInPart
			}
			w = rt.newWriter(c, op.Policy)
		}
		ran = true
		w.ctx = ctx
		defer func() { w.stopLimit() }()
		c.Next(w, in.next(ctx))
		if w.doubt != nil {
			rt.engine.ReportMisused(ctx, w.doubt)
			return idem.Response{Status: http.StatusInternalServerError}, rt.notTheHandlers(w.doubt)
		}
		if c.Unrouted && (w.status == http.StatusNotFound || w.status == http.StatusMethodNotAllowed) {
			idem.NotAdmitted(ctx)
		}
		if !keyed { // the client does not read refusals as ours
			return w.response(rt.replay), nil
		}
		return w.response(rt.replay), adapter.Relayed(w.relayed())
	})
	returned = true
	live := ran && err == nil && !res.Replayed
	switch {
	case w.hijacked:
	case w.streamed && (!live || w.failed || w.short()):
		w.breakOff()
		panic(http.ErrAbortHandler)
	case w.streamed:
		w.end()
	case w.elsewhere && live:
	case w.dropped && live && w.status < http.StatusBadRequest:
		rt.refuse(c, adapter.TooLong(errDropped, keyed))
	case w.dropped && live:
		w.sendWithoutBody()
	case live:
		w.send()
	case err != nil:
		refusal := adapter.RefusalOf(err)
		if ran && keyed && refusal.Code == idem.CodeOutcomeUnknown {
			refusal = adapter.ComeBack(refusal, retryAfter(w.final()))
		}
		rt.refuse(c, refusal)
	default:
		rt.replayResponse(c, &res.Response, op.Policy.MaxResponseHeld)
	}
}

// newWriter returns the writer of a handler.
func (rt *Route) newWriter(c *Call, p *idem.Policy) *Writer {
	w := newWriter(c, p.MaxResponseBody, p.MaxResponseHeld)
	w.whole, w.flushes, w.early = rt.engine.Joined(), rt.cfg.Streaming, c.Early
	return w
}

// errDropped says that the operation has succeeded, and that its response was not kept.
var errDropped = errors.New("the response is longer than the policy keeps in memory (MaxResponseHeld), and could not be sent before the outcome was settled")

// errSentInPart says that a handler cannot run again, because the client has a part of the
// response.
var errSentInPart = errors.New("the handler met a conflict after a part of its response had been sent")

// This file is about handlers that answer with a refusal by a called service, or by
// middleware inside. The refusal has no information about the outcome of this handler's
// operation. So the status does not count, and the outcome is in doubt.

// maxProblem is how much of a problem is read, in bytes. Refusals are shorter.
const maxProblem = 64 << 10

// unreadable is the code of a problem that was not kept, or is in an unknown encoding. It
// counts as a refusal, because it may be one.
const unreadable idem.Code = "a problem that cannot be read"

// relayed returns the code of the refusal in the handler's answer, or "".
func (w *Writer) relayed() idem.Code {
	switch {
	case !isProblem(w.final()):
		return ""
	case w.elsewhere, w.streamed && !w.hijacked:
		return unreadable
	}
	var r io.Reader = bytes.NewReader(w.body) // empty after a hijack
	switch encoding := strings.ToLower(strings.Join(w.final()["Content-Encoding"], ", ")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return ""
		}
		r = z
	default:
		return unreadable
	}
	var problem struct {
		Code idem.Code `json:"code"`
	}
	if json.NewDecoder(io.LimitReader(r, maxProblem)).Decode(&problem) != nil || !problem.Code.Known() {
		return ""
	}
	return problem.Code
}

func isProblem(h http.Header) bool { return mediaType(h) == "application/problem+json" }

// mediaType returns the type of a response in small letters, without parameters.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}
