package sqlstore

import (
	"maps"
	"os"
	"strings"
	"testing"
)

// The table of rights in docs/sql.md is that which Grants grants.
func TestTableOfRightsIsThatOfGrants(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/sql.md")
	must(t, err)
	told := map[Role]map[string]string{RoleService: {}, RoleOperator: {}, RoleReader: {}}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		name, isTable := strings.CutPrefix(strings.TrimSpace(cells[min(1, len(cells)-1)]), "`idem_")
		if !isTable || len(cells) != 6 {
			continue
		}
		name, _, _ = strings.Cut(name, "`")
		for i, role := range []Role{RoleService, RoleOperator, RoleReader} {
			if rights := strings.TrimSpace(cells[2+i]); rights != "" {
				told[role][name] = rights
			}
		}
	}
	for role, tables := range rightsOf {
		want := map[string]string{}
		for _, of := range tables {
			want[of.table] = strings.Join(of.names, ", ")
		}
		if !maps.Equal(told[role], want) {
			t.Errorf("docs/sql.md has the rights %v for role %d, want %v", told[role], role, want)
		}
	}
}
