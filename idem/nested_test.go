package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Do within the execution of its own key would wait for itself.
func TestDoWithinItsOwnExecutionIsRefusedAtOnce(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = time.Hour }})
	inner := 0
	again := func(ctx context.Context, key, body string) (idem.Result, error) {
		return b.engine.Do(ctx, b.operation(key, body), func(context.Context) (idem.Response, error) {
			inner++
			return idem.Response{Status: 204}, nil
		})
	}
	var left context.Context
	res, err := b.doWith("k1", "a", func(ctx context.Context) (idem.Response, error) {
		left = ctx
		for _, body := range []string{"a", "another"} {
			_, err := again(ctx, "k1", body)
			if b.wantRefused(err, idem.CodeInternal); !errors.Is(err, idem.ErrNested) {
				t.Errorf("Do() inside = %v, want %v", err, idem.ErrNested)
			}
		}
		if _, err := b.engine.Do(ctx, b.operation("k2", "a"), func(ctx context.Context) (idem.Response, error) {
			_, err := again(ctx, "k1", "a")
			if b.wantRefused(err, idem.CodeInternal); !errors.Is(err, idem.ErrNested) {
				t.Errorf("Do() inside of another key = %v, want %v", err, idem.ErrNested)
			}
			return idem.Response{Status: 204}, nil
		}); err != nil {
			t.Errorf("Do() of another key = %v", err)
		}
		return b.pay(ctx)
	})
	b.wantPaid(res, err, 1, false)
	res, err = again(context.WithoutCancel(left), "k1", "a") // it is over
	b.wantPaid(res, err, 1, true)
	if inner != 0 {
		t.Errorf("the inner handler ran %d times", inner)
	}
}

// A resolver that has its operation executed would make what it is asked about.
func TestAResolverCannotExecuteItsOperation(t *testing.T) {
	var b *bundle
	asked := 0
	b = setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(ctx context.Context, _ idem.Interrupted) (idem.Resolution, error) {
			asked++
			op := b.operation("k1", "a")
			if part, err := b.engine.Nested(ctx, &op); part || !errors.Is(err, idem.ErrNested) {
				t.Errorf("Nested() = %v, %v, want %v", part, err, idem.ErrNested)
			}
			if _, err := b.engine.Do(ctx, op, b.pay); !errors.Is(err, idem.ErrNested) {
				t.Errorf("Do() = %v, want %v", err, idem.ErrNested)
			}
			return idem.StillUnknown(), nil
		})
	}})
	b.wantAnswer("k1", "a", 500)
	if asked != 1 {
		t.Errorf("the resolver was asked %d times, want once", asked)
	}
	b.wantRuns(0)
}

func TestPassThrough(t *testing.T) {
	b := setup(t, parts{})
	resolver := func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil }
	policy := idem.Policy{Scope: b.policy.Scope, InDoubt: idem.AskResolver(resolver), HandlerTimeout: time.Hour}
	with := func(change func(*idem.Policy)) idem.Operation {
		p := policy
		change(&p)
		p = withDefaults(t, p)
		op := b.operation("k1", "a")
		op.Policy = &p
		return op
	}
	named := with(func(p *idem.Policy) { p.Name = "pay" })
	routed := with(func(p *idem.Policy) { *p = p.ForRoute("POST /pay") })
	for name, tt := range map[string]struct {
		outer, inner idem.Operation
		part, wrong  bool
	}{
		"the same policy":          {named, named, true, false},
		"a copy":                   {named, with(func(p *idem.Policy) { p.Name = "pay" }), true, false},
		"another scope":            {named, with(func(p *idem.Policy) { p.Name = "pay"; p.Scope = merchantFunc() }), true, false},
		"another route":            {routed, with(func(p *idem.Policy) { *p = p.ForRoute("POST /v2/pay") }), true, false},
		"another name":             {named, with(func(p *idem.Policy) { p.Name = "refund" }), false, true},
		"another kind":             {named, with(func(p *idem.Policy) { p.Name = "pay"; p.IssuedTokens = true }), false, true},
		"another deadline":         {named, with(func(p *idem.Policy) { p.Name = "pay"; p.HandlerTimeout = time.Minute }), false, true},
		"no resolver":              {named, with(func(p *idem.Policy) { p.Name = "pay"; p.InDoubt = idem.RunAgain() }), false, true},
		"another resolver":         {named, with(func(p *idem.Policy) { p.Name = "pay"; p.InDoubt = idem.AskResolver(otherResolver) }), false, true},
		"another body limit":       {named, with(func(p *idem.Policy) { p.Name = "pay"; p.MaxRequestBody = 1 }), false, true},
		"another key":              {named, func() idem.Operation { op := named; op.Key = "k2"; return op }(), false, false},
		"another caller":           {named, func() idem.Operation { op := named; op.Scope = "m2"; return op }(), false, false},
		"a name on one side":       {named, with(func(p *idem.Policy) { *p = p.ForRoute("POST /pay") }), true, false},
		"a name on the other side": {routed, named, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			if _, err := b.engine.Do(t.Context(), tt.outer, func(ctx context.Context) (idem.Response, error) {
				part, err := b.engine.Nested(ctx, &tt.inner)
				if part != tt.part || errors.Is(err, idem.ErrNested) != tt.wrong {
					t.Errorf("Nested() = %v, %v, want %v, wrong %v", part, err, tt.part, tt.wrong)
				}
				other := setup(t, parts{})
				if part, err := other.engine.Nested(ctx, &tt.outer); part || err != nil {
					t.Errorf("Nested() of another engine = %v, %v", part, err)
				}
				return idem.Response{Status: 204}, nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func otherResolver(context.Context, idem.Interrupted) (idem.Resolution, error) {
	return idem.NotApplied(), nil
}

func merchantFunc() idem.ScopeFunc {
	return func(context.Context) (string, error) { return "m1", nil }
}
