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
	"sync"
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
	// mostLookUps run at the same time for single records, and as many for lists and for runs over many. Those
	// that ignored the end of their context count.
	mostLookUps = 8
	rowsTimeout = 2 * time.Second // for all of a list
	maxFound    = 200             // characters of what was found, in a line of a list
)

// errLookUpSlow is shown to the operator.
var errLookUpSlow = fmt.Errorf("it took longer than %v", lookUpTimeout)

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
	select {
	case c.lookUps <- struct{}{}:
		return c.lookUpIn(ctx, c.lookUps, route, operationID)
	default:
		return c.safeToShow(ctx, operationID, Found{}, errors.New("earlier look-ups have not ended"))
	}
}

// lookUpOfMany is lookUp for one of many operations. It waits for one of its slots, which are not those of
// lookUp. So many look-ups do not keep an operator from a single one.
func (c *Console) lookUpOfMany(ctx context.Context, route, operationID string) *lookedUp {
	select {
	case c.lookUpsOfMany <- struct{}{}:
		return c.lookUpIn(ctx, c.lookUpsOfMany, route, operationID)
	case <-ctx.Done():
		return c.safeToShow(ctx, operationID, Found{}, fmt.Errorf("earlier look-ups have not ended: %w", ctx.Err()))
	}
}

// lookUpIn asks in a slot that the caller has taken. The slot is free again once the service's function
// has returned.
func (c *Console) lookUpIn(ctx context.Context, slots <-chan struct{}, route, operationID string) *lookedUp {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	type result struct {
		found Found
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-slots }()
		found, err := c.ask(ctx, route, operationID)
		done <- result{found, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.err = errLookUpSlow
	}
	return c.safeToShow(ctx, operationID, r.found, r.err)
}

// safeToShow makes the words of a look-up safe to show.
func (c *Console) safeToShow(ctx context.Context, operationID string, found Found, err error) *lookedUp {
	l := &lookedUp{Found: found}
	l.Says, l.Hint, l.More = operate.Printable(l.Says), operate.Printable(l.Hint), operate.Printable(l.More)
	if err != nil {
		c.cfg.Logger.WarnContext(ctx, "console: look-up", "operation", operationID, "err", err)
		l.Failed = operate.OneLine(err.Error())
		l.Says, l.Nothing = "", false
	}
	return l
}

// lookUpRows asks about those operations of a list that the operator may settle, within a bounded time for all of
// them, and says for each what a line of the list shows.
func (c *Console) lookUpRows(ctx context.Context, list []*operate.Facts, op Operator) []string {
	out := make([]string, len(list))
	if c.cfg.LookUp == nil || c.cfg.NoLookUpInList {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	var asked sync.WaitGroup
	for i, f := range list {
		if f.Err != nil || whyNot(f, op) != "" {
			continue
		}
		asked.Go(func() {
			l := c.lookUpOfMany(ctx, f.Record.Route, f.ID.OperationID())
			switch {
			case l.found():
				out[i] = short(operate.OneLine(l.Says), maxFound)
			case l.Nothing:
				out[i] = "nothing, which is no proof"
			case l.Failed != "" && ctx.Err() != nil:
				out[i] = "not looked up in time"
			case l.Failed != "":
				out[i] = "the look-up failed"
			}
		})
	}
	asked.Wait()
	return out
}

// short cuts a text to some characters.
func short(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
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
	return operate.TookEffect(l.answer(route).Status)
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
