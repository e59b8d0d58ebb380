package idemgrpc_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// tokens are policies for issued tokens.
func tokens(policies []idem.Policy) []idem.Policy {
	policies = slices.Clone(policies)
	for i := range policies {
		policies[i].IssuedTokens = true
	}
	return policies
}

func TestWiringErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ok := b.policyOf(transferMethod)
	with := func(cfg idemgrpc.Config) []idemgrpc.Config { return []idemgrpc.Config{cfg} }
	for name, tt := range map[string]struct {
		policies []idem.Policy
		cfg      []idemgrpc.Config
		want     string
	}{
		"no policy":               {nil, nil, "no policy"},
		"no scope":                {[]idem.Policy{{Name: transferMethod, InDoubt: idem.LeaveUnknown()}}, nil, "no Scope"},
		"no scope of all others":  {[]idem.Policy{{}}, nil, "no Scope"},
		"two for a method":        {b.policyOf(transferMethod, transferMethod), nil, "two policies"},
		"two for all others":      {[]idem.Policy{b.policy, b.policy}, nil, "two policies"},
		"two configs":             {ok, []idemgrpc.Config{{}, {}}, "at most one"},
		"no method name":          {b.policyOf("Transfer"), nil, "want /package.Service/Method"},
		"no slash in front":       {b.policyOf("wallet.v1.WalletService/Transfer"), nil, "want /package.Service/Method"},
		"no service":              {b.policyOf("//Do"), nil, "want /package.Service/Method"},
		"no method":               {b.policyOf("/legacy.Service/"), nil, "want /package.Service/Method"},
		"a part too many":         {b.policyOf("/legacy.Service/Do/It"), nil, "want /package.Service/Method"},
		"a typing error":          {b.policyOf("/wallet.v1.WalletService/Transfr"), nil, "no generated code"},
		"another service":         {b.policyOf("/wallet.v2.WalletService/Transfer"), nil, "no generated code"},
		"a message for a service": {b.policyOf("/wallet.v1.TransferRequest/Transfer"), nil, "no generated code"},
		"a stream of requests":    {b.policyOf(uploadMethod), nil, "streams requests"},
		"exempt and protected":    {ok, with(idemgrpc.Config{Exempt: []string{transferMethod}}), "exempt"},
		"exempt nonsense":         {ok, with(idemgrpc.Config{Exempt: []string{"Transfer"}}), "exempt"},
		"optional nonsense":       {ok, with(idemgrpc.Config{OptionalKey: []string{"Transfer"}}), "optional key"},
		"optional, not protected": {ok, with(idemgrpc.Config{OptionalKey: []string{payoutMethod}}), "not protected"},
		"optional and exempt":     {ok, with(idemgrpc.Config{OptionalKey: []string{balanceMethod}, Exempt: []string{balanceMethod}}), "not protected"},
		"an optional token":       {tokens(ok), with(idemgrpc.Config{OptionalKey: []string{transferMethod}}), "issued tokens"},
		"optional tokens":         {tokens(ok), with(idemgrpc.Config{OptionalKey: []string{"/wallet.v1.WalletService/*"}}), "issued tokens"},
		"optional tokens of all":  {tokens([]idem.Policy{b.policy}), with(idemgrpc.Config{OptionalKey: []string{"/wallet.v1.WalletService/*"}}), "issued tokens"},
		"no such field":           {ok, with(idemgrpc.Config{KeyField: "nonce"}), "string field"},
		"a field that is no text": {ok, with(idemgrpc.Config{KeyField: "amount"}), "string field"},
		"metadata that is binary": {ok, with(idemgrpc.Config{MetadataKey: "key-bin"}), "metadata"},
		"metadata with capitals":  {ok, with(idemgrpc.Config{MetadataKey: "Idempotency-Key"}), "metadata"},
		"cookies":                 {ok, with(idemgrpc.Config{Replay: []string{"Set-Cookie"}}), "never replayed"},
		"gRPC's own":              {ok, with(idemgrpc.Config{Replay: []string{"grpc-status-details-bin"}}), "metadata"},
		"the protocol's own":      {ok, with(idemgrpc.Config{Replay: []string{"content-type"}}), "not the name"},
		"no name":                 {ok, with(idemgrpc.Config{Replay: []string{"a b"}}), "not the name"},
	} {
		if _, err := idemgrpc.New(b.engine, tt.policies, tt.cfg...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New() = %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := idemgrpc.New(nil, ok); err == nil {
		t.Error("New(nil) = nil, want an error")
	}
	if _, err := idemgrpc.New(b.engine, b.policyOf("/grpc.health.v1.Health/Check")); err != nil {
		t.Errorf("New() with a policy for gRPC's health service = %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("MustNew() with a wiring error did not panic")
			}
		}()
		idemgrpc.MustNew(b.engine, nil)
	}()
	if x := idemgrpc.MustNew(b.engine, ok); x.Unary() == nil || x.Stream() == nil {
		t.Error("no interceptor")
	}
}

// Calls without a key are outside of the guarantee of their method, and it says so.
func TestGuaranteeOfAnOptionalKey(t *testing.T) {
	t.Parallel()
	const all = "/wallet.v1.WalletService/*"
	for name, tt := range map[string]struct {
		byName   bool // the policy
		optional []string
		want     bool
	}{
		"its own":          {true, []string{transferMethod}, true},
		"of its service":   {true, []string{all}, true},
		"of another":       {true, []string{payoutMethod, transferMethod}, true},
		"none":             {true, nil, false},
		"for all others":   {false, []string{all}, true},
		"none, all others": {false, nil, false},
	} {
		b := setup(t)
		policies := []idem.Policy{b.policy}
		if tt.byName {
			policies = b.policyOf(transferMethod, payoutMethod)
		}
		idemgrpc.MustNew(b.engine, policies, idemgrpc.Config{OptionalKey: tt.optional})
		for _, g := range b.engine.Guarantees() {
			if strings.HasSuffix(g.Route, payoutMethod) {
				continue
			}
			if strings.Contains(g.Line(), "if the request has a key") != tt.want {
				t.Errorf("%s: the method gets %v", name, g.Line())
			}
		}
	}
}
