package idemgrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// RegisterStatusServer adds the service idemkeeper.v1.Idempotency to a server,
// by which the owner of a key learns where it stands. The key is that of the
// metadata, as the interceptors read it, or of the request. The server's
// interceptors run before it: authentication has to be one of them, and leaves
// in the context whose key it is, for the policy's Scope.
//
// Of the policy only Scope and InDoubt count, the latter for
// every route where it has no Name, and else for the route of its Name. Of the
// options [WithMetadataKey] and [WithStatusPolicy] count, and so do
// [WithPolicy] and [WithPolicies] for the methods that they protect: those of
// [New] can be given as they are.
//
// It panics on a wiring error, as [UnaryServerInterceptor].
func RegisterStatusServer(r grpc.ServiceRegistrar, e *idem.Engine, policy idem.Policy, opts ...Option) {
	s, err := newStatusServer(e, policy, opts)
	if err != nil {
		panic(fmt.Errorf("idemgrpc: %w", err))
	}
	idemkeeperv1.RegisterIdempotencyServer(r, s)
}

// statusServer looks keys up. It is safe for concurrent use.
type statusServer struct {
	idemkeeperv1.UnimplementedIdempotencyServer

	engine      *idem.Engine
	policy      idem.Policy
	policies    []*idem.Policy // by which it tells, policy last
	metadataKey string
}

func newStatusServer(e *idem.Engine, policy idem.Policy, opts []Option) (*statusServer, error) {
	if e == nil {
		return nil, errors.New("no engine")
	}
	o := defaultOptions()
	o.apply(opts)
	if err := o.validateMetadataKey(); err != nil {
		return nil, err
	}
	policy, err := policy.WithDefaults()
	if err != nil {
		return nil, err
	}
	s := &statusServer{engine: e, policy: policy, metadataKey: o.metadataKey}
	for _, p := range slices.Backward(o.status) {
		if p.Name == "" {
			return nil, errors.New("a status policy without a route")
		}
		s.policies = append(s.policies, &p)
	}
	for _, name := range slices.Sorted(maps.Keys(o.policies)) {
		p := o.policies[name]
		if p.Name == "" {
			p.Name = recorded(name)
		}
		s.policies = append(s.policies, &p)
	}
	s.policies = append(s.policies, &s.policy)
	return s, nil
}

// GetStatus implements [idemkeeperv1.IdempotencyServer].
func (s *statusServer) GetStatus(ctx context.Context, req *idemkeeperv1.GetStatusRequest) (*idemkeeperv1.Status, error) {
	st, err := s.status(ctx, req)
	if err != nil {
		return nil, refuseUnary(ctx, refusalOf(err))
	}
	return statusMessage(&st), nil
}

func (s *statusServer) status(ctx context.Context, req *idemkeeperv1.GetStatusRequest) (idem.Status, error) {
	field := req.GetKey()
	key, err := parseKey(metadata.ValueFromIncomingContext(ctx, s.metadataKey), field, field != "")
	if err != nil {
		return idem.Status{}, err
	}
	scope, err := s.policy.ScopeOf(ctx)
	if err != nil {
		return idem.Status{}, err
	}
	return s.engine.Status(ctx, scope, key, s.policies...)
}

// states and kinds are those of package idem. Not casts: numbers on the wire
// stay what they are.
var (
	states = map[idem.State]idemkeeperv1.State{
		idem.StateNone:      idemkeeperv1.State_STATE_NONE,
		idem.StateIssued:    idemkeeperv1.State_STATE_ISSUED,
		idem.StatePending:   idemkeeperv1.State_STATE_PENDING,
		idem.StateCompleted: idemkeeperv1.State_STATE_COMPLETED,
		idem.StateReleased:  idemkeeperv1.State_STATE_RELEASED,
		idem.StateUnknown:   idemkeeperv1.State_STATE_UNKNOWN,
		idem.StateExpired:   idemkeeperv1.State_STATE_EXPIRED,
	}
	kinds = map[idem.KeyKind]idemkeeperv1.KeyKind{
		idem.ClientKey:   idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY,
		idem.IssuedToken: idemkeeperv1.KeyKind_KEY_KIND_ISSUED_TOKEN,
	}
)

func statusMessage(s *idem.Status) *idemkeeperv1.Status {
	m := &idemkeeperv1.Status{State: states[s.State]}
	if s.State == idem.StateNone {
		return m
	}
	m.OperationId, m.Kind, m.Attempt = s.OperationID, kinds[s.Kind], s.Attempt
	m.Since, m.ExpiresAt = timestampOf(s.Since), timestampOf(s.ExpiresAt)
	if s.State.Open() {
		m.Resolver = &s.ResolvesItself
	}
	return m
}

// timestampOf leaves out what does not apply.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
