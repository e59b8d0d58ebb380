package sqlstore_test

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The guarantee of joined mode names what a database leaves to the handler or to the machine, and nothing else.
func TestJoinedGuaranteeNamesItsConditions(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		for _, strict := range []bool{false, true} {
			p := serviceParts{}
			if strict {
				p = strictly(t, p)
			}
			g, err := startService(t, b, p).engine.Guarantee(idem.Policy{AllowGlobalKeys: true})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(g.Conditions, "; ")
			for text, want := range map[string]bool{
				"after a failed statement": !strict && b.dialect != dialect.PostgreSQL,
				"behind a pooler":          false,
				"clock of the machine":     b.dialect == dialect.SQLite,
			} {
				if strings.Contains(got, text) != want {
					t.Errorf("strict %t: the conditions are %q, want %q among them: %t", strict, got, text, want)
				}
			}
		}
	})
}
