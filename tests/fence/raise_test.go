package fence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// step is one transaction: a payment, or the look of a resolver.
type step struct {
	resolver bool
	fence    driver.Fence
	doubt    driver.Fence // of a resolver
	stale    bool         // a StaleError is wanted
}

func TestFences(t *testing.T) {
	pays := func(f driver.Fence) step { return step{fence: f} }
	refused := func(f driver.Fence) step { return step{fence: f, stale: true} }
	looks := func(f, doubt driver.Fence) step { return step{resolver: true, fence: f, doubt: doubt} }
	a, b, c := func(n uint64) driver.Fence { return in("a", n) }, func(n uint64) driver.Fence { return in("b", n) },
		func(n uint64) driver.Fence { return in("c", n) }
	tests := map[string][]step{
		"a higher fence refuses a lower one":                {pays(a(2)), refused(a(1)), pays(a(3))},
		"the same fence may pay twice":                      {pays(a(1)), pays(a(1))},
		"a paused holder is refused after the resolver":     {looks(a(2), a(1)), refused(a(1))},
		"the holder of the resolver may pay after it":       {looks(a(2), a(1)), pays(a(2))},
		"a lower resolver cannot tell":                      {pays(a(3)), {resolver: true, fence: a(2), doubt: a(1), stale: true}},
		"another domain takes over, the old one is over":    {pays(a(9)), pays(b(1)), refused(a(10)), pays(b(2))},
		"a domain stays over after two successions":         {pays(a(1)), pays(b(1)), pays(c(1)), refused(a(5)), refused(b(5))},
		"a resolver of a new domain ends the old one":       {looks(b(1), a(7)), refused(a(7)), refused(a(8)), pays(b(1))},
		"a resolver ends a domain beside the one kept":      {pays(c(1)), looks(b(1), a(7)), refused(a(7)), refused(c(2)), pays(b(1))},
		"a resolver ends a domain under its own fence":      {pays(b(1)), looks(b(1), a(7)), refused(a(8)), pays(b(1))},
		"a resolver of a domain that is over cannot tell":   {pays(a(1)), pays(b(1)), {resolver: true, fence: a(2), doubt: a(1), stale: true}},
		"the greatest token that a database holds is taken": {pays(a(math.MaxInt64)), refused(a(math.MaxInt64 - 1))},
	}
	onEach(t, func(t *testing.T, l *ledger) {
		for name, steps := range tests {
			paid := 0
			for i, s := range steps {
				var err error
				if s.resolver {
					err = l.settled(t, name, s.fence, s.doubt)
				} else {
					err = l.pay(t.Context(), sql.LevelDefault, name, s.fence)
				}
				if !s.resolver && !s.stale {
					paid++
				}
				stale, ok := errors.AsType[*fence.StaleError](err)
				if ok != s.stale || !s.stale && err != nil {
					t.Errorf("%s: step %d under %v = %v, want a StaleError: %v", name, i, s.fence, err, s.stale)
				}
				if !ok {
					continue
				}
				if stale.OperationID != name || stale.Fence != s.fence || stale.Latest == (driver.Fence{}) {
					t.Errorf("%s: step %d: %+v, want operation and fences", name, i, stale)
				}
				for _, want := range []string{name, fmt.Sprint(s.fence.Token), fmt.Sprint(stale.Latest.Token), "stale"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: step %d: %q, want %q in it", name, i, err, want)
					}
				}
			}
			if got := len(l.paid(t, name)); got != paid {
				t.Errorf("%s: %d payments, want %d", name, got, paid)
			}
		}
	})
}

func TestOperationsThatDifferALittleAreApart(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		for i, op := range []string{"op", "OP", "op ", "öp", "o", strings.Repeat("o", 255)} {
			if err := l.raised(t, l.fences, op, in("a", uint64(9-i))); err != nil {
				t.Errorf("Raise(%q) after the others = %v", op, err)
			}
		}
	})
}

func TestWrongFencesAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		for op, f := range map[string]driver.Fence{"none": {}, "no domain": in("", 1), "no token": in("a", 0), "a great token": in("a", math.MaxInt64+1),
			"": in("a", 1), strings.Repeat("o", 256): in("a", 1), "a long domain": in(strings.Repeat("a", 256), 1)} {
			if err := l.pay(t.Context(), sql.LevelDefault, op, f); err == nil {
				t.Errorf("Raise(%.20q, %.20v) = nil, want an error", op, f)
			}
		}
	})
}

func TestRolledBackFencesLeaveNoTrace(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		no := errors.New("no")
		err := l.inTx(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error {
			return errors.Join(l.fences.Raise(t.Context(), tx, "op", in("a", 9)), no)
		})
		if !errors.Is(err, no) {
			t.Fatal(err)
		}
		if err := l.pay(t.Context(), sql.LevelDefault, "op", in("a", 1)); err != nil {
			t.Errorf("pay after the rollback of a later fence = %v", err)
		}
	})
}
