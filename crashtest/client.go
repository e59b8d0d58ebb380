package crashtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Send sends a request on a connection of its own, and returns its answer. It fits into [Subject.Request].
func Send(req *http.Request) (Answer, error) {
	// Without keep-alive, because net/http repeats a request with an Idempotency-Key on a connection that broke.
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(res.Body)
	return Answer{Status: res.StatusCode, Body: string(body), Header: res.Header}, err
}

// byStatus is the outcome of an answer over HTTP.
func byStatus(a Answer) Outcome {
	switch {
	case a.Status == http.StatusConflict && saysInDoubt(a.Body):
		return InDoubt
	case a.Status >= 500:
		return Again
	case a.Status >= 200 && a.Status < 300:
		return Success
	}
	switch a.Status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, 499:
		return Again
	}
	return Refusal
}

// saysInDoubt reports whether a problem says that the operation may have happened.
func saysInDoubt(body string) bool {
	var problem struct {
		Code            string `json:"code"`
		MayHaveHappened bool   `json:"may_have_happened"`
	}
	return json.Unmarshal([]byte(body), &problem) == nil && (problem.MayHaveHappened || problem.Code == "outcome-unknown")
}

// reply is what one request of a client got.
type reply struct {
	Answer
	err   error
	other bool // of a request with another body
	at    time.Time
	from  string
}

func (a reply) String() string {
	if a.err != nil {
		return "no answer: " + a.err.Error()
	}
	return fmt.Sprintf("%d %s (%v)", a.Status, shorten(a.Body, 120), a.Outcome)
}

// final reports whether a client stops asking.
func (a reply) final() bool {
	return a.Outcome == Success || a.Outcome == Refusal || a.Outcome == InDoubt && a.Header.Get("Retry-After") == ""
}

func shorten(s string, to int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > to {
		return s[:to] + "…"
	}
	return s
}

// history is what became of one operation.
type history struct {
	key   string
	start time.Time

	mu      sync.Mutex
	lines   []line
	replies []reply
}

type line struct {
	at    time.Time
	text  string
	again string // the answer that asks for another try, if it is one
}

func (r *runner) newHistory() *history {
	return &history{key: fmt.Sprintf("crashtest-%s", strings.ToLower(rand.Text()[:16])), start: time.Now()}
}

func (h *history) notef(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, line{at: time.Now(), text: fmt.Sprintf(format, args...)})
}

func (h *history) answered(a reply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := line{at: a.at, text: fmt.Sprintf("%s got %v", a.from, a)}
	if a.Outcome == Again {
		l.again = a.String()
	}
	h.lines = append(h.lines, l)
	h.replies = append(h.replies, a)
}

// client sends a request until it has a final answer.
type client struct {
	*runner
	*history
	name    string
	other   bool
	timeout time.Duration           // of one request
	route   func(nth int) *instance // takes a request, with nth from 0
	away    func() bool             // reports whether a server is away, or nil
}

// send sends one request.
func (c *client) send(ctx context.Context, nth int) reply {
	in := c.route(nth)
	ctx, cancel := context.WithTimeout(ctx, c.timeout<<min(nth/3, 3)) // a busy service needs more time than the first tries give it
	defer cancel()
	from := c.name
	if nth > 0 {
		from = fmt.Sprintf("%s, try %d", c.name, nth+1)
	}
	from = fmt.Sprintf("%s at process %d", from, in.cmd.Process.Pid)
	if nth == 0 {
		c.notef("%s sends the request", from)
	}
	a := reply{other: c.other, from: from}
	a.Answer, a.err = c.Request(ctx, Call{Addr: in.addr, Key: c.key, Other: c.other})
	a.at = time.Now()
	switch {
	case a.err != nil:
		a.Outcome = Again
	case a.Outcome == ByStatus:
		a.Outcome = byStatus(a.Answer)
	}
	c.answered(a)
	return a
}

// untilFinal repeats the request until an answer is final or the budget is used. The budget begins when no server is away.
func (c *client) untilFinal(ctx context.Context) (last reply) {
	return c.untilFinalFrom(ctx, 0)
}

func (c *client) untilFinalFrom(ctx context.Context, nth int) (last reply) {
	away := func() bool { return c.away != nil && c.away() }
	end := time.Now().Add(c.Budget)
	for wait := 20 * time.Millisecond; ; nth++ {
		began := away()
		last = c.send(ctx, nth)
		if began || away() {
			end = time.Now().Add(c.Budget)
		}
		if last.final() || ctx.Err() != nil || time.Now().After(end) {
			return last
		}
		pause(ctx, max(wait, retryAfter(last)))
		wait = min(2*wait, longestPause)
	}
}

const longestPause = 200 * time.Millisecond

// retryAfter is the header's time. A second is long in a test, so it is cut.
func retryAfter(a reply) time.Duration {
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, longestPause)
}
