package idemgrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/idemkeeper/idemkeeper/idem"
)

// engine is what the interceptors need of [idem.Engine].
type engine interface {
	Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	ReportRefused(ctx context.Context, route string, r *idem.Refusal)
	Nested(ctx context.Context, op *idem.Operation) (bool, error)
}

var _ engine = (*idem.Engine)(nil)

// Interceptors protect the methods of a server. They are safe for concurrent
// use, by several servers as well.
type Interceptors struct {
	engine  engine
	options options
	allow   nameSet
	methods methods
}

// New makes the interceptors of a server. The error says what is wrong with the
// wiring: no engine, no scope, a method that does not exist or cannot be
// protected, metadata that cannot be replayed.
func New(e *idem.Engine, opts ...Option) (*Interceptors, error) {
	x, err := newInterceptors(e, opts)
	if err != nil {
		return nil, fmt.Errorf("idemgrpc: %w", err)
	}
	return x, nil
}

func newInterceptors(e *idem.Engine, opts []Option) (*Interceptors, error) {
	if e == nil {
		return nil, errors.New("no engine")
	}
	x := &Interceptors{engine: e, options: defaultOptions()}
	x.options.apply(opts)
	if err := x.options.validate(); err != nil {
		return nil, err
	}
	var err error
	if x.allow, err = newNameSet(x.options.replay); err != nil {
		return nil, err
	}
	return x, x.methods.init(&x.options)
}

// UnaryServerInterceptor is [New] and [Interceptors.Unary] for wiring that is
// known to be right: it panics where New returns an error, at start and never
// later, as [regexp.MustCompile].
func UnaryServerInterceptor(e *idem.Engine, opts ...Option) grpc.UnaryServerInterceptor {
	return must(e, opts).Unary()
}

// StreamServerInterceptor is to [Interceptors.Stream] what
// [UnaryServerInterceptor] is to Unary.
func StreamServerInterceptor(e *idem.Engine, opts ...Option) grpc.StreamServerInterceptor {
	return must(e, opts).Stream()
}

func must(e *idem.Engine, opts []Option) *Interceptors {
	x, err := New(e, opts...)
	if err != nil {
		panic(err)
	}
	return x
}

// Unary returns the interceptor of unary methods.
func (x *Interceptors) Unary() grpc.UnaryServerInterceptor { return x.unary }

// Stream returns the interceptor of streaming methods.
func (x *Interceptors) Stream() grpc.StreamServerInterceptor { return x.stream }

// refused answers with a refusal that was decided here, before the engine was
// asked or after it had answered.
func (x *Interceptors) refused(ctx context.Context, m *method, err error) *idem.Refusal {
	r := refusalOf(err)
	x.engine.ReportRefused(ctx, m.route(), r)
	return r
}
