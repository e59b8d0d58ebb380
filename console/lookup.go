package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"runtime/debug"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// Found is what [Config].LookUp found out about an operation. The zero Found says that the service
// cannot tell. "Nothing is there" has to be said, because an operator may then run a payment again.
type Found struct {
	// Says is what the operation did, in the words in which a person compares it with the order,
	// such as "pay_1: 12.50 USD from alice to bob, of merchant_demo". An operation with Says took
	// effect.
	Says string
	// Nothing is true if the operation has left nothing. The look-up has searched where the route
	// writes, for every customer, and in data that is not older than a replica's. Says overrules
	// it.
	Nothing bool
	// Answer is what repeats get if the operation was found. If it cannot be complete, or nothing was
	// found, the form for an answer starts with it. Status 0 means 201, and no Content-Type means
	// application/json. Over gRPC it is that of idemgrpc.Outcome, and is complete.
	Answer idem.Response
	// Hint names what else a normal answer has, if Answer cannot be complete, such as "the payment
	// as body". Answer is taken for complete without it.
	Hint string
	// More is how the operator goes on looking if nothing was found, such as a query or a command.
	// It is shown as text to be copied, also beside an error.
	More string
}

const (
	lookUpTimeout = 5 * time.Second
	mostLookUps   = 8 // that run at the same time, also those that ignored the end of their context
)

// lookedUp is a look-up as a page tells it.
type lookedUp struct {
	Failed string // why it could not tell, "" if it did not fail
	Found
}

// found reports whether the operation took effect, by the look-up.
func (l *lookedUp) found() bool { return l.Says != "" }

// lookUp asks the service what an operation did. It comes back in time, whatever the service's
// function does.
func (c *Console) lookUp(ctx context.Context, route, operationID string) *lookedUp {
	if c.cfg.LookUp == nil {
		return &lookedUp{}
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	type result struct {
		found Found
		err   error
	}
	done := make(chan result, 1)
	r := result{err: errors.New("earlier look-ups have not ended")}
	select {
	case c.lookUps <- struct{}{}:
		go func() {
			defer func() { <-c.lookUps }()
			found, err := c.ask(ctx, route, operationID)
			done <- result{found, err}
		}()
		select {
		case r = <-done:
		case <-ctx.Done():
			r.err = ctx.Err()
		}
	default:
	}
	l := &lookedUp{Found: r.found}
	l.Says, l.Hint, l.More = operate.Printable(l.Says), operate.Printable(l.Hint), operate.Printable(l.More)
	if r.err != nil {
		c.cfg.Logger.WarnContext(ctx, "console: look-up", "operation", operationID, "err", r.err)
		l.Failed = operate.OneLine(r.err.Error())
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			l.Failed = fmt.Sprintf("it took longer than %v", lookUpTimeout)
		}
		l.Says, l.Nothing = "", false
	}
	return l
}

// ask calls the service's function. A panic is an error.
func (c *Console) ask(ctx context.Context, route, operationID string) (f Found, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.cfg.Logger.ErrorContext(ctx, "console: the look-up panicked", "panic", p, "stack", string(debug.Stack()))
			f, err = Found{}, errors.New("it panicked, and the log of the service has the reason")
		}
	}()
	return c.cfg.LookUp(ctx, route, operationID)
}

// answer is the answer of a look-up for a route, with the zero fields filled in.
func (l *lookedUp) answer(route string) idem.Response {
	resp := idem.Response{Status: l.Answer.Status, Header: maps.Clone(l.Answer.Header), Trailer: l.Answer.Trailer, Body: l.Answer.Body}
	if operate.Likely(route) == operate.OverGRPC {
		return resp
	}
	resp.Status = cmp.Or(resp.Status, http.StatusCreated)
	if len(resp.Body) > 0 && field(&resp, "Content-Type") == "" {
		if resp.Header == nil {
			resp.Header = map[string][]string{}
		}
		resp.Header["Content-Type"] = []string{"application/json"}
	}
	return resp
}

// complete reports whether repeats can get the answer of a look-up as it is.
func (l *lookedUp) complete(route string) bool {
	if !l.found() || l.Hint != "" || len(l.Answer.Body) == 0 || l.Answer.Omitted {
		return false
	}
	if operate.Likely(route) == operate.OverGRPC {
		return l.Answer.Status == 0 // codes.OK
	}
	return tookEffect(l.answer(route).Status)
}

// digest is equal for equal words and answers.
func (l *lookedUp) digest(route string) string {
	resp := l.answer(route)
	text := fmt.Sprintf("%q %d %q %q %q", l.Says, resp.Status, resp.Header, resp.Trailer, resp.Body) // the maps are sorted
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
}

// field is the first value of a header field.
func field(resp *idem.Response, name string) string {
	for n, values := range resp.Header {
		if len(values) > 0 && textproto.CanonicalMIMEHeaderKey(n) == name {
			return values[0]
		}
	}
	return ""
}
