package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A route that requires more than its engine gives is refused at the wiring, and with Do at the request, with nothing consumed.
func TestRouteThatRequiresMoreIsRefused(t *testing.T) {
	t.Parallel()
	store := memorystore.New()
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		t.Fatal(err)
	}
	policy := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, Require: guarantee.AtMostOnce, InDoubt: idem.LeaveUnknown()}
	_, err = engine.Fit(policy)
	for _, said := range []string{"POST /pay", "not through a crash", "tokenstore/redis"} {
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("Fit() = %v, want it to say %q", err, said)
		}
	}
	op := idem.Operation{Key: "k", Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}
	_, err = engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
		t.Error("the handler ran")
		return idem.Response{}, nil
	})
	var refused *idem.Refusal
	if !errors.As(err, &refused) || refused.Code != idem.CodeInternal || !strings.Contains(err.Error(), "not through a crash") {
		t.Errorf("Do() = %v, want it refused as internal", err)
	}
	policy.Require = guarantee.Need{Effect: guarantee.Elsewhere, Through: guarantee.Repeat | guarantee.Outage}
	if _, err := engine.Fit(policy); err != nil {
		t.Errorf("Fit() = %v of what a process gives", err)
	}

	g, err := engine.Guarantee(policy)
	if err != nil || g.Setup != "lock in this process, records in this process" || !g.Of(guarantee.Elsewhere).Once.Has(guarantee.Repeat) {
		t.Errorf("Guarantee() = %+v, %v", g, err)
	}
	if err := engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Guarantee(policy); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Guarantee() of a closed engine = %v", err)
	}
}

// Outside of a joined transaction a policy has to say what follows a crash. Nothing is consumed without.
func TestDoubtIsChosen(t *testing.T) {
	t.Parallel()
	engine := idem.MustNew(memorylock.New(), memorystore.New())
	policy := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true}
	_, fit := engine.Fit(policy)
	_, asked := engine.Guarantee(policy)
	op := idem.Operation{Key: "k", Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}
	_, did := engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
		t.Error("the handler ran")
		return idem.Response{}, nil
	})
	for of, err := range map[string]error{"Fit": fit, "Guarantee": asked, "Do": did} {
		for _, said := range []string{"POST /pay", "idem.AskResolver", "idem.RunAgain", "idem.LeaveUnknown", "5xx"} {
			if err == nil || !strings.Contains(err.Error(), said) {
				t.Errorf("%s() = %v, want it to say %q", of, err, said)
			}
		}
	}
	for name, choice := range map[string]idem.InDoubt{"leave": idem.LeaveUnknown(), "ask": idem.AskResolver(nil), "again": idem.RunAgain()} {
		policy.Name, policy.InDoubt = name, choice
		if _, err := engine.Fit(policy); err != nil {
			t.Errorf("%s: Fit() = %v", name, err)
		}
	}
	joined := idem.MustNewJoined(newBook())
	if _, err := joined.Fit(idem.Policy{Name: "POST /pay", AllowGlobalKeys: true}); err != nil {
		t.Errorf("Fit() = %v of a joined engine", err)
	}
}

func TestTwoRequirementsOnOneRouteAreRefused(t *testing.T) {
	t.Parallel()
	engine := idem.MustNew(memorylock.New(), memorystore.New())
	policy := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown(), Require: guarantee.Need{Effect: guarantee.Elsewhere, Through: guarantee.Repeat}}
	for range 2 { // the same twice is no fault
		if _, err := engine.Fit(policy); err != nil {
			t.Fatal(err)
		}
	}
	policy.Require.Through = guarantee.Outage
	if _, err := engine.Fit(policy); err == nil || !strings.Contains(err.Error(), `"POST /pay" is set up twice`) {
		t.Errorf("Fit() = %v, want it to refuse the second requirement", err)
	}
	policy.Name = "POST /refund"
	if _, err := engine.Fit(policy); err != nil {
		t.Errorf("Fit() = %v of another route", err)
	}
}

// Each route is logged once, at its start. A policy without a name stands for its line of the program until a request names the route.
func TestRoutesSayWhatTheyGet(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	engine := idem.MustNew(memorylock.New(), memorystore.New(), idem.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	named := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	unnamed := named
	unnamed.Name = ""
	fitted := make([]idem.Policy, 0, 4)
	for _, p := range []idem.Policy{named, named, unnamed} {
		p, err := engine.Fit(p)
		if err != nil {
			t.Fatal(err)
		}
		fitted = append(fitted, p)
	}
	if n := strings.Count(log.String(), "route="); n != 2 || !strings.Contains(log.String(), `route="POST /pay"`) || !strings.Contains(log.String(), "route=fits_test.go:") ||
		!strings.Contains(log.String(), "at most once anywhere else") {
		t.Errorf("the log has %d routes, want 2:\n%s", n, &log)
	}
	routes := func() (all []string) {
		for _, g := range engine.Guarantees() {
			all = append(all, g.Route)
		}
		return all
	}
	if got := routes(); len(got) != 2 || got[0] != "POST /pay" || !strings.HasPrefix(got[1], "fits_test.go:") {
		t.Errorf("Guarantees() are of %q", got)
	}
	fitted[2].ForRoute("POST /refund")
	fitted[2].ForRoute("POST /refund")
	if got := routes(); !slices.Equal(got, []string{"POST /pay", "POST /refund"}) {
		t.Errorf("Guarantees() are of %q after a request", got)
	}
	for n := range 2000 { // methods that clients make up
		fitted[2].ForRoute(fmt.Sprint("/made/up", n))
	}
	if got := routes(); len(got) > 1001 {
		t.Errorf("Guarantees() are of %d routes, want about 1000", len(got))
	}
}
