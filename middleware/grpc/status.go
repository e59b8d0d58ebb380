package idemgrpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// RegisterStatusServer adds the service idemkeeper.v1.Idempotency to a server. It tells
// the owner of a key its state. The key is that of the metadata, as the interceptors read
// it, or of the request. The server's interceptors run before it. Authentication has to
// be one of them, and leaves the principal in the context for the policy's Scope.
//
// The service uses Scope and InDoubt of the policy. InDoubt applies to the route of the
// policy's Name, or to every route if it has no Name. StatusPolicies of [Config] adds routes with
// another InDoubt. Of the config it uses MetadataKey as well, so that of [New] can be given. The
// error is for wrong wiring, as that of New.
func RegisterStatusServer(r grpc.ServiceRegistrar, e *idem.Engine, policy idem.Policy, cfg ...Config) error {
	s := &statusServer{engine: e}
	c, err := completed(cfg)
	s.metadataKey = c.MetadataKey
	if err == nil && e == nil {
		err = errors.New("no engine")
	}
	if err == nil {
		s.policy, err = policy.WithDefaults()
	}
	if err == nil {
		s.policies, err = adapter.StatusPolicies(c.StatusPolicies, &s.policy)
	}
	if err != nil {
		return fmt.Errorf("idemgrpc: %w", err)
	}
	idemkeeperv1.RegisterIdempotencyServer(r, s)
	return nil
}

// MustRegisterStatusServer is [RegisterStatusServer], and panics where that returns an error.
func MustRegisterStatusServer(r grpc.ServiceRegistrar, e *idem.Engine, policy idem.Policy, cfg ...Config) {
	if err := RegisterStatusServer(r, e, policy, cfg...); err != nil {
		panic(err)
	}
}

// statusServer looks keys up. It is safe for concurrent use.
type statusServer struct {
	idemkeeperv1.UnimplementedIdempotencyServer

	engine      *idem.Engine
	policy      idem.Policy
	policies    []*idem.Policy // of routes, the first of a name counts
	metadataKey string
}

// GetStatus implements [idemkeeperv1.IdempotencyServer].
func (s *statusServer) GetStatus(ctx context.Context, req *idemkeeperv1.GetStatusRequest) (*idemkeeperv1.Status, error) {
	key, err := parseKey(metadata.ValueFromIncomingContext(ctx, s.metadataKey), req.GetKey(), req.GetKey() != "")
	var scope string
	if err == nil {
		scope, err = s.policy.ScopeOf(ctx)
	}
	var st idem.Status
	if err == nil {
		st, err = s.engine.Status(ctx, scope, key, s.policies...)
	}
	if err != nil {
		return nil, refuse(ctx, adapter.RefusalOf(err))
	}
	m := &idemkeeperv1.Status{State: idemkeeperv1.State(number(idemkeeperv1.State_value, "STATE_", st.State))}
	if st.State == driver.StateNone {
		return m, nil
	}
	m.OperationId, m.Attempt = st.OperationID, st.Attempt
	m.Kind = idemkeeperv1.KeyKind(number(idemkeeperv1.KeyKind_value, "KEY_KIND_", st.Kind))
	m.Since, m.ExpiresAt = timestampOf(st.Since), timestampOf(st.ExpiresAt)
	if st.State.Open() {
		m.Resolver = &st.ResolvesItself
	}
	return m, nil
}

// number translates a state or a kind of package idem by its name. It is no cast, because
// numbers on the wire must not change.
func number(values map[string]int32, prefix string, name fmt.Stringer) int32 {
	return values[prefix+Reason(idem.Code(name.String()))]
}

// timestampOf leaves out a time that does not apply.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
