package routes

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

func TestOf(t *testing.T) {
	t.Parallel()
	pay := idem.Policy{Name: "pay", MaxRuns: 1, InDoubt: idem.LeaveUnknown()}
	for name, tt := range map[string]struct {
		list        []idem.Policy
		pay, refund int // MaxRuns, or 0 for none
	}{
		"none":                   {nil, 0, 0},
		"by name":                {[]idem.Policy{pay}, 1, 0},
		"for all":                {[]idem.Policy{{MaxRuns: 2, InDoubt: idem.LeaveUnknown()}}, 2, 2},
		"by name before for all": {[]idem.Policy{{MaxRuns: 2, InDoubt: idem.LeaveUnknown()}, pay}, 1, 2},
	} {
		p, err := New(tt.list)
		if err != nil {
			t.Errorf("%s: New() = %v", name, err)
			continue
		}
		for route, want := range map[string]int{"pay": tt.pay, "refund": tt.refund} {
			if got, ok := p.Of(route); got.MaxRuns != want || ok != (want > 0) {
				t.Errorf("%s: Of(%q) = %+v, %v, want MaxRuns %d", name, route, got, ok, want)
			}
		}
	}
	for name, list := range map[string][]idem.Policy{"two for a route": {pay, pay}, "two for all others": {{}, {}}, "a wrong one": {{KeyTTL: -1}}} {
		if _, err := New(list); err == nil {
			t.Errorf("New() with %s = nil, want an error", name)
		}
	}
}
