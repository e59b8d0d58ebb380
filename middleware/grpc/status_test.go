package idemgrpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// statusOf serves the status service alone and returns how to ask it.
func (b *bundle) statusOf(policy idem.Policy, cfg ...idemgrpc.Config) func(ctx context.Context, field string) (*idemkeeperv1.Status, error) {
	b.Helper()
	server := grpc.NewServer()
	idemgrpc.MustRegisterStatusServer(server, b.engine, policy, cfg...)
	client := idemkeeperv1.NewIdempotencyClient(serve(b.TB, server))
	return func(ctx context.Context, field string) (*idemkeeperv1.Status, error) {
		return client.GetStatus(ctx, &idemkeeperv1.GetStatusRequest{Key: field})
	}
}

// neverAsked is a resolver of a status server, which asks none.
func neverAsked(context.Context, idem.Interrupted) (idem.Resolution, error) {
	panic("the status server asked a resolver")
}

func TestStatusOfEachState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := map[idemkeeperv1.State]string{
		idemkeeperv1.State_STATE_PENDING: "held", idemkeeperv1.State_STATE_COMPLETED: "paid", idemkeeperv1.State_STATE_RELEASED: "nothing",
		idemkeeperv1.State_STATE_UNKNOWN: "broken", idemkeeperv1.State_STATE_EXPIRED: "old",
	}
	inside, goOn := make(chan struct{}), make(chan struct{})
	b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		switch req.GetNote() {
		case "held":
			close(inside)
			<-goOn
		case "nothing":
			return nil, status.Error(codes.ResourceExhausted, "later")
		case "broken":
			return nil, status.Error(codes.Internal, "who knows")
		}
		return &walletv1.TransferResponse{Id: "t1", Amount: 1250}, nil
	}
	b.start()
	transfer := func(key string) answer { return b.send(b.withKeys(key), &walletv1.TransferRequest{Note: key}) }
	b.wantPaid(transfer("old"), false)
	b.later.Store(int64(25 * time.Hour))
	held := make(chan answer, 1)
	go func() { held <- transfer("held") }()
	receive(t, "a start", inside)
	for _, k := range []string{"paid", "nothing", "broken"} {
		transfer(k)
	}
	token, err := b.engine.IssueToken(t.Context(), "merchant", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key[idemkeeperv1.State_STATE_ISSUED] = string(token.Value)

	for _, resolver := range []struct {
		policy func(*idem.Policy)
		says   bool
	}{
		{func(*idem.Policy) {}, false},
		{func(p *idem.Policy) { p.InDoubt = idem.AskResolver(neverAsked) }, true},
		{func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }, true},
	} {
		policy := b.policy
		resolver.policy(&policy)
		ask := b.statusOf(policy)
		if s, err := ask(b.withKeys("nobody's"), ""); err != nil || !proto.Equal(s, &idemkeeperv1.Status{State: idemkeeperv1.State_STATE_NONE}) {
			t.Errorf("status of no key = %v, %v, want none and nothing else", s, err)
		}
		for _, tt := range []struct {
			state   idemkeeperv1.State
			attempt uint32
			kind    idemkeeperv1.KeyKind
			expires bool
			open    bool
		}{
			{idemkeeperv1.State_STATE_ISSUED, 0, idemkeeperv1.KeyKind_KEY_KIND_ISSUED_TOKEN, true, false},
			{idemkeeperv1.State_STATE_PENDING, 1, idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY, false, true},
			{idemkeeperv1.State_STATE_COMPLETED, 1, idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY, true, false},
			{idemkeeperv1.State_STATE_RELEASED, 1, idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY, true, false},
			{idemkeeperv1.State_STATE_UNKNOWN, 1, idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY, false, true},
			{idemkeeperv1.State_STATE_EXPIRED, 1, idemkeeperv1.KeyKind_KEY_KIND_CLIENT_KEY, true, false},
		} {
			s, err := ask(b.withKeys(key[tt.state]), "")
			if err != nil || s.GetState() != tt.state || s.GetAttempt() != tt.attempt || s.GetKind() != tt.kind ||
				s.GetExpiresAt().IsValid() != tt.expires || s.Resolver != nil != tt.open || s.GetResolver() != (resolver.says && tt.open) {
				t.Errorf("status = %v, %v, want %+v, and resolver %v where it is open", s, err, tt, resolver.says)
			}
			if since := s.GetSince(); !since.IsValid() || time.Since(since.AsTime()) > time.Hour || !strings.HasPrefix(s.GetOperationId(), "op_") {
				t.Errorf("status = %v, want since when, and an operation", s)
			}
		}
	}
	close(goOn)
	receive(t, "an answer", held)
	b.wantRuns(5) // being asked about runs nothing
}

// Every state of package idem has a number on the wire.
func TestStatusNamesEveryState(t *testing.T) {
	t.Parallel()
	for i := range len(idemkeeperv1.State_name) - 1 {
		name := "STATE_" + strings.ToUpper(driver.State(i).String())
		if idemkeeperv1.State_value[name] != int32(i+1) {
			t.Errorf("%s = %d, want %d", name, idemkeeperv1.State_value[name], i+1)
		}
	}
	if s := driver.State(len(idemkeeperv1.State_name) - 1).String(); !strings.HasPrefix(s, "state(") {
		t.Errorf("state %s has no number on the wire", s)
	}
}

func TestStatusByThePolicyOfTheRoute(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wallet.transfer = answers(nil, status.Error(codes.Internal, "who knows"))
	b.start()
	b.pay("k1")
	with := func(name string) idem.Policy {
		return idem.Policy{Name: name, Scope: b.policy.Scope, InDoubt: idem.AskResolver(neverAsked)}
	}
	without := func(name string) idem.Policy {
		return idem.Policy{Name: name, Scope: b.policy.Scope, InDoubt: idem.LeaveUnknown()}
	}
	for name, tt := range map[string]struct {
		policy idem.Policy
		routes []idem.Policy
		want   bool
	}{
		"of every route":         {with(""), nil, true},
		"of the route":           {with(transferMethod), nil, true},
		"of another route":       {with("POST /v1/payments"), nil, false},
		"the route has one":      {without(""), []idem.Policy{with(transferMethod)}, true},
		"the route has none":     {with(""), []idem.Policy{without(transferMethod)}, false},
		"another route has none": {with(""), []idem.Policy{without("POST /v1/payments")}, true},
		"before a named one":     {without(transferMethod), []idem.Policy{with(transferMethod)}, true},
	} {
		s, err := b.statusOf(tt.policy, idemgrpc.Config{StatusPolicies: tt.routes})(b.withKeys("k1"), "")
		if err != nil || s.GetState() != idemkeeperv1.State_STATE_UNKNOWN || s.Resolver == nil || s.GetResolver() != tt.want {
			t.Errorf("%s: status = %v, %v, want it unknown, and resolver %v", name, s, err, tt.want)
		}
	}
}

func TestStatusReadsTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t).start()
	b.wantPaid(b.pay("k1"), false)
	ask := b.statusOf(b.policy)
	none, completed := idemkeeperv1.State_STATE_NONE, idemkeeperv1.State_STATE_COMPLETED
	for _, tt := range []struct {
		name  string
		keys  []string
		field string
		state idemkeeperv1.State
		code  idem.Code
	}{
		{"metadata", []string{"k1"}, "", completed, ""},
		{"the quoted form", []string{`"k1"`}, "", completed, ""},
		{"request", nil, "k1", completed, ""},
		{"both", []string{"k1"}, `"k1"`, completed, ""},
		{"another key", []string{"k2"}, "", none, ""},
		{"nothing", nil, "", 0, idem.CodeKeyMissing},
		{"two keys", []string{"k1", "k2"}, "", 0, idem.CodeKeyInvalid},
		{"another one in the request", []string{"k1"}, "k2", 0, idem.CodeKeyInvalid},
		{"malformed", []string{"k 1"}, "", 0, idem.CodeKeyInvalid},
		{"malformed in the request", nil, strings.Repeat("k", 256), 0, idem.CodeKeyInvalid},
		{"malformed beside a good one", []string{""}, "k1", 0, idem.CodeKeyInvalid},
	} {
		s, err := ask(b.withKeys(tt.keys...), tt.field)
		if tt.code != "" {
			b.wantRefusal(err, tt.code)
		} else if err != nil || s.GetState() != tt.state {
			t.Errorf("%s: status = %v, %v, want %v", tt.name, s, err, tt.state)
		}
	}
	other := b.statusOf(b.policy, idemgrpc.Config{MetadataKey: "x-key"})
	if s, err := other(metadata.AppendToOutgoingContext(b.withKeys("k2"), "x-key", "k1"), ""); err != nil || s.GetState() != completed {
		t.Errorf("other metadata: status = %v, %v, want %v", s, err, completed)
	}
	b.wantRuns(1)
}

func TestStatusRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t).start()
	b.wantPaid(b.pay("k1"), false)
	for _, scope := range []idem.ScopeFunc{
		func(context.Context) (string, error) { return "", nil },
		func(context.Context) (string, error) { return "", errDown },
	} {
		_, err := b.statusOf(idem.Policy{Scope: scope, InDoubt: idem.LeaveUnknown()})(b.withKeys("k1"), "")
		b.wantRefusal(err, idem.CodeInternal)
	}
	other := idem.Policy{Scope: func(context.Context) (string, error) { return "somebody else", nil }, InDoubt: idem.LeaveUnknown()}
	if s, err := b.statusOf(other)(b.withKeys("k1"), ""); err != nil || !proto.Equal(s, &idemkeeperv1.Status{State: idemkeeperv1.State_STATE_NONE}) {
		t.Errorf("status for somebody else = %v, %v, want none and nothing else", s, err)
	}
	ask := b.statusOf(b.policy)
	for fault, code := range map[error]idem.Code{errDown: idem.CodeUnavailable, driver.ErrStoreLost: idem.CodeStoreLost} {
		b.failStore(fault)
		_, err := ask(b.withKeys("k1"), "")
		b.wantRefusal(err, code)
		if text := status.Convert(err).Proto().String(); strings.Contains(text, "secret") || strings.Contains(text, "k1") {
			t.Errorf("the client is told %s", text)
		}
	}
}

// The interceptors stand before the service and leave it alone, whatever they
// are told: the key that it carries is that of another call. So do those of
// clients, which make no key up for it.
func TestStatusPassesTheInterceptors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	own := idemgrpc.Config{RefuseUnknown: true, KeyField: "key"}
	x, err := idemgrpc.New(b.engine, []idem.Policy{b.policy}, own)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(x.Unary()), grpc.StreamInterceptor(x.Stream()))
	walletv1.RegisterWalletServiceServer(server, b.wallet)
	idemgrpc.MustRegisterStatusServer(server, b.engine, b.policy, own)
	reflection.Register(server)
	b.conn = serve(t, server, grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured)))
	b.client = walletv1.NewWalletServiceClient(b.conn)
	client := idemkeeperv1.NewIdempotencyClient(b.conn)

	for range 2 {
		var header metadata.MD
		s, err := client.GetStatus(b.withKeys("k1"), &idemkeeperv1.GetStatusRequest{}, grpc.Header(&header))
		if err != nil || s.GetState() != idemkeeperv1.State_STATE_NONE || len(header.Get("idempotent-replayed")) > 0 {
			t.Errorf("GetStatus() = %v, %v, header %v, want none, not replayed", s, err, header)
		}
	}
	b.wantNothing()
	b.wantPaid(b.pay("k1"), false)
	if s, err := client.GetStatus(b.withKeys("k1"), &idemkeeperv1.GetStatusRequest{}); err != nil || s.GetState() != idemkeeperv1.State_STATE_COMPLETED {
		t.Errorf("GetStatus() = %v, %v, want completed", s, err)
	}
	_, err = client.GetStatus(b.withKeys(), &idemkeeperv1.GetStatusRequest{})
	b.wantRefusal(err, idem.CodeKeyMissing)

	ctx, cancel := context.WithCancel(b.withKeys())
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(b.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "idemkeeper.v1.Idempotency"}}); err != nil {
		t.Fatal(err)
	}
	if res, err := stream.Recv(); err != nil || len(res.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection = %v, %v, want the service's file", res, err)
	}
}

func TestStatusWiringErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	method := idemkeeperv1.Idempotency_GetStatus_FullMethodName
	if _, err := idemgrpc.New(b.engine, b.policyOf(method)); err == nil || !strings.Contains(err.Error(), "exempt") {
		t.Errorf("New() with a policy for the status = %v, want an error", err)
	}
	for name, tt := range map[string]struct {
		engine *idem.Engine
		policy idem.Policy
		cfg    []idemgrpc.Config
		want   string
	}{
		"no engine":   {nil, b.policy, nil, "no engine"},
		"no scope":    {b.engine, idem.Policy{}, nil, "no Scope"},
		"no route":    {b.engine, b.policy, []idemgrpc.Config{{StatusPolicies: []idem.Policy{{}}}}, "without a route"},
		"metadata":    {b.engine, b.policy, []idemgrpc.Config{{MetadataKey: "key-bin"}}, "metadata"},
		"two configs": {b.engine, b.policy, []idemgrpc.Config{{}, {}}, "at most one"},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "idemgrpc: ") || !strings.Contains(got, tt.want) {
					t.Errorf("%s: MustRegisterStatusServer() panicked with %q, want %q", name, got, tt.want)
				}
			}()
			idemgrpc.MustRegisterStatusServer(grpc.NewServer(), tt.engine, tt.policy, tt.cfg...)
		}()
	}
}
