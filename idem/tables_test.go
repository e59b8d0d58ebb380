package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// TestRefusalTable is the table of design.md, section 8, to the letter.
func TestRefusalTable(t *testing.T) {
	for _, tt := range []struct {
		code  idem.Code
		http  int
		grpc  int
		title string
		retry bool
	}{
		{"key-missing", 400, 3, "Idempotency-Key is missing", false},
		{"key-invalid", 400, 3, "Idempotency-Key is malformed", false},
		{"body-invalid", 400, 3, "Request body is malformed", false},
		{"token-unknown", 403, 7, "Token is unknown", false},
		{"in-progress", 409, 10, "A request is outstanding for this Idempotency-Key", true},
		{"key-reused", 422, 9, "Idempotency-Key is already used", false},
		{"outcome-unknown", 409, 9, "Outcome is unknown", false},
		{"key-expired", 409, 9, "Idempotency-Key has expired", false},
		{"result-unavailable", 409, 9, "Result is unavailable", false},
		{"ownership-lost", 503, 14, "Ownership was lost", true},
		{"unavailable", 503, 14, "Service unavailable", true},
		{"store-lost", 503, 14, "Service unavailable", true},
		{"body-too-large", 413, 8, "Request body is too large", false},
		{"body-incomplete", 408, 14, "Request body is incomplete", true},
		{"too-many-open", 429, 8, "Too many operations are open", true},
		{"internal", 500, 13, "Internal error", false},
		{"never heard of", 500, 13, "Internal error", false},
	} {
		r := idem.NewRefusal(tt.code, nil)
		if r.Code.HTTPStatus() != tt.http || r.Code.GRPCCode() != tt.grpc || r.Code.Title() != tt.title || r.Code.Detail() == "" {
			t.Errorf("%s = %d, %d, %q, %q", tt.code, r.Code.HTTPStatus(), r.Code.GRPCCode(), r.Code.Title(), r.Code.Detail())
		}
		if (r.RetryAfter > 0) != tt.retry {
			t.Errorf("%s: RetryAfter = %v, want one: %t", tt.code, r.RetryAfter, tt.retry)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	p := withDefaults(t, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	if p.ResultTTL != 24*time.Hour || p.KeyTTL != 7*24*time.Hour || p.MaxRequestBody != 1<<20 || p.MaxResponseBody != 1<<20 ||
		p.ResolverTimeout != 5*time.Second || p.IssuedTokens || p.DuplicateWait != 0 || p.HandlerTimeout != 0 || p.FailOpen || p.InDoubt.Resolver() != nil || p.InDoubt.RunsAgain() {
		t.Errorf("WithDefaults() = %+v", p)
	}
	if p := withDefaults(t, idem.Policy{AllowGlobalKeys: true, ResultTTL: 30 * 24 * time.Hour, InDoubt: idem.LeaveUnknown()}); p.KeyTTL != p.ResultTTL {
		t.Errorf("KeyTTL = %v, want at least ResultTTL, %v", p.KeyTTL, p.ResultTTL)
	}
	for name, bad := range map[string]idem.Policy{
		"no scope":               {},
		"negative wait":          {AllowGlobalKeys: true, DuplicateWait: -1, InDoubt: idem.LeaveUnknown()},
		"negative body limit":    {AllowGlobalKeys: true, MaxRequestBody: -1, InDoubt: idem.LeaveUnknown()},
		"long name":              {AllowGlobalKeys: true, Name: strings.Repeat("n", 256), InDoubt: idem.LeaveUnknown()},
		"fail open with a token": {AllowGlobalKeys: true, IssuedTokens: true, FailOpen: true, InDoubt: idem.LeaveUnknown()},
	} {
		if _, err := bad.WithDefaults(); err == nil {
			t.Errorf("%s: WithDefaults() = nil, want an error", name)
		}
	}
}

func TestScopeFrom(t *testing.T) {
	type owner struct{}
	for name, tt := range map[string]struct {
		value any
		want  string
	}{"a string": {"merchant", "merchant"}, "nothing": {nil, ""}, "an empty string": {"", ""}, "another type": {7, ""}} {
		p := idem.Policy{Scope: idem.ScopeFrom(owner{}), InDoubt: idem.LeaveUnknown()}
		scope, err := p.ScopeOf(context.WithValue(t.Context(), owner{}, tt.value))
		refusal, refused := errors.AsType[*idem.Refusal](err)
		if scope != tt.want || refused != (tt.want == "") || refused && refusal.Code != idem.CodeInternal {
			t.Errorf("%s: ScopeOf() = %q, %v, want %q", name, scope, err, tt.want)
		}
	}
}

func TestKeyIDSeparatesScopeAndKey(t *testing.T) {
	ids := map[driver.KeyID]string{}
	for _, p := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", "x"}, {"a", "b"}, {"a\x00", "b"}, {"a", "\x00b"}} {
		id := idem.NewKeyID(p[0], idem.Key(p[1]))
		if other, ok := ids[id]; ok {
			t.Errorf("NewKeyID(%q, %q) is that of %s", p[0], p[1], other)
		}
		ids[id] = p[0] + "/" + p[1]
		if got, err := driver.ParseKeyID(id.String()); err != nil || got != id {
			t.Errorf("ParseKeyID(%s) = %v, %v", id, got, err)
		}
	}
	for _, bad := range []string{"", "zz", strings.Repeat("g", 64), strings.Repeat("a", 63)} {
		if _, err := driver.ParseKeyID(bad); err == nil {
			t.Errorf("ParseKeyID(%q) = nil, want an error", bad)
		}
		if _, err := driver.ParseNonce(bad); err == nil {
			t.Errorf("ParseNonce(%q) = nil, want an error", bad)
		}
	}
	n := driver.NewNonce()
	if got, err := driver.ParseNonce(n.String()); err != nil || got != n {
		t.Errorf("ParseNonce(%s) = %v, %v", n, got, err)
	}
}

// TestKeyIDIsStable: IDs written by an older build must go on being found.
func TestKeyIDIsStable(t *testing.T) {
	id := idem.NewKeyID("merchant_demo", "order-1001")
	const want = "fc0a11504bd2646139fafda1f6f6d723bae75404d79a037b57a4c0580cb4047a"
	if id.String() != want {
		t.Errorf("NewKeyID = %s, want %s", id, want)
	}
	if got, want := id.OperationID(), "op_ea4f2b3193b3fba8b52a85ddd9f63757"; got != want {
		t.Errorf("OperationID = %s, want %s", got, want)
	}
	b := setup(t, parts{})
	op := b.operation("order-1001", "a")
	op.Scope = "merchant_demo"
	_, _ = b.engine.Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
		if got, want := derived(ctx, t, "bank"), "8d0e85b3-6e32-86e6-9f06-d9ff12d2c627"; got != want { // version 8, variant 10
			t.Errorf("DownstreamKey = %s, want %s", got, want)
		}
		return idem.Response{Status: 201}, nil
	})
}

func TestStateNames(t *testing.T) {
	for s := driver.StateNone; s <= driver.StateExpired; s++ {
		if got, err := driver.ParseState(s.String()); err != nil || got != s {
			t.Errorf("ParseState(%q) = %v, %v", s, got, err)
		}
	}
	if _, err := driver.ParseState("done"); err == nil {
		t.Error(`ParseState("done") = nil, want an error`)
	}
}
