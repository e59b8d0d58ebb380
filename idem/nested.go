package idem

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ErrNested says that an operation came from the running execution of its own key. It would
// have to wait for itself.
var ErrNested = errors.New("idem: this is inside of the running execution of the same key")

// inside returns the running execution of a key by this engine if ctx belongs to it, or nil.
func (c *core) inside(ctx context.Context, id driver.KeyID) *execution {
	for x := executionOf(ctx); x != nil; x = x.outer {
		if x.core == c && x.of.id == id && !x.ended.Load() {
			return x
		}
	}
	return nil
}

// Nested is for adapters, before Do. It reports whether ctx belongs to the running execution of
// the same key by this engine, under the same policy. Then the middleware was mounted twice, or
// a handler has made a request within the process. The adapter hands the request to the handler
// as a part of that execution. The error is a [*Refusal]. It says that the policies differ,
// which is a wiring error, or that a resolver made the request.
//
// An operation without a key is part of any running execution of this engine that has a transaction. Another
// transaction could wait for that one.
func (e *Engine) Nested(ctx context.Context, op *Operation) (bool, error) {
	if executionOf(ctx) == nil {
		return false, nil
	}
	if op.Key == "" {
		return e.inTransaction(ctx), nil
	}
	x := e.inside(ctx, NewKeyID(op.Scope, op.Key))
	switch {
	case x == nil:
		return false, nil
	case x.resolves:
		return false, refuse(CodeInternal, fmt.Errorf("%w, asked for by its resolver", ErrNested))
	}
	if fields := x.of.Policy.differing(*op.Policy); len(fields) > 0 {
		return false, refuse(CodeInternal, fmt.Errorf("%w, and policy %q differs from policy %q outside in %s: mount the middleware once, or twice with one policy",
			ErrNested, op.Policy.Name, x.of.Policy.Name, strings.Join(fields, ", ")))
	}
	return true, nil
}

// inTransaction reports whether ctx belongs to a running execution of this engine that has a transaction.
func (c *core) inTransaction(ctx context.Context) bool {
	for x := executionOf(ctx); x != nil; x = x.outer {
		if x.core == c && x.transaction() != nil && !x.ended.Load() {
			return true
		}
	}
	return false
}

// differing returns the fields in which two policies treat keys in different ways. It leaves Scope out,
// because both scopes led to the same key, and a name if it is only the name of the route. Functions are
// the same if their code is.
func (p Policy) differing(q Policy) (fields []string) {
	if p.unnamed || q.unnamed {
		p.Name, q.Name = "", ""
	}
	p.Scope, q.Scope = nil, nil
	a, b := reflect.ValueOf(p), reflect.ValueOf(q)
	for i := range a.NumField() {
		field := a.Type().Field(i)
		if field.IsExported() && fmt.Sprintf("%#v", a.Field(i)) != fmt.Sprintf("%#v", b.Field(i)) { // functions print as their address
			fields = append(fields, field.Name)
		}
	}
	return fields
}
