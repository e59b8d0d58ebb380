package sqlstore

import (
	"database/sql"
	"errors"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// newUser makes a user of the database without any right, and returns its pool.
func newUser(t *testing.T, b backend, p pools) (name string, db *sql.DB) {
	t.Helper()
	name = freshName(t)
	if b.dialect == dialect.PostgreSQL {
		mustExec(t, p.write, "CREATE ROLE "+name+" LOGIN")
		t.Cleanup(func() {
			mustExec(t, p.write, "DROP OWNED BY "+name)
			mustExec(t, p.write, "DROP ROLE "+name)
		})
		u := parsed(t, p.dsn)
		u.User = url.User(name)
		return name, open(t, "pgx", u.String())
	}
	mustExec(t, p.write, "CREATE USER "+name)
	t.Cleanup(func() { mustExec(t, p.write, "DROP USER "+name) })
	cfg := parsedMySQL(t, p.dsn)
	cfg.User, cfg.Passwd = name, ""
	return name, open(t, "mysql", cfg.FormatDSN())
}

// grant gives a user the rights of a role.
func grant(t *testing.T, b backend, p pools, role Role, user string) {
	t.Helper()
	list, err := Grants(t.Context(), p.write, b.dialect, role, user)
	if err != nil {
		t.Fatalf("Grants() = %v, want <nil>", err)
	}
	for _, statement := range list {
		mustExec(t, p.write, statement)
	}
}

// optionsOf are how each role opens the store.
var optionsOf = map[Role][]Option{RoleService: {quiet()}, RoleOperator: {quiet(), WithExpiry(0)}, RoleReader: {quiet(), WithReadOnly()}}

func TestServiceWorksWithItsRightsAlone(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{rewrite: func(p *pools) {
			name, db := newUser(t, b, *p)
			grant(t, b, *p, RoleService, name)
			mustExec(t, p.write, "GRANT SELECT, INSERT ON payments TO "+name)
			p.write, p.read = db, db
		}, policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
		if _, err := s.pools.write.ExecContext(t.Context(), "CREATE TABLE more (n INT)"); err == nil {
			t.Fatal("the service may make tables")
		}
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.with(s.paying(402))
		s.want(s.pay("k2"), answer{status: 402, body: "paid"})
		mustExec(t, s.pools.write, s.joined.names.sql("UPDATE {records} SET expires = 1"))
		mustExec(t, s.pools.write, s.joined.names.sql("UPDATE {bindings} SET expires = 1"))
		_, expired := s.joined.Expire(t.Context(), 10)
		id, a := begin(t, s.joined.Store, "doubtful")
		noted := s.joined.NoteFence(t.Context(), driver.Fence{Domain: "locks", Token: 1})
		if err := errors.Join(expired, noted, s.joined.Ping(t.Context()), s.joined.DeclareSealed(t.Context()),
			callSettle(t.Context(), s.joined.Store, id, settlementOf(a, "alice"))); err != nil {
			t.Error(err)
		}
		if list, err := s.joined.Decisions(t.Context(), id); len(list) != 1 || err != nil {
			t.Errorf("Decisions() = %v, %v, want alice's", list, err)
		}
	})
}

func TestOperatorAndReaderWorkWithTheirRightsAlone(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		name, db := newUser(t, b, p)
		grant(t, b, p, RoleOperator, name)
		s := b.store(t, pools{write: db, read: db}, optionsOf[RoleOperator]...)
		id, a := begin(t, s, "doubtful")
		var failed []error
		for name, call := range calls(s, key(2)) {
			if err := call(t.Context()); name != "Expire" && errors.Is(err, ErrRights) {
				failed = append(failed, err)
			}
		}
		failed = append(failed, callSettle(t.Context(), s, id, settlementOf(a, "alice")))
		if err := errors.Join(failed...); err != nil {
			t.Errorf("an operator cannot: %v", err)
		}
		mustExec(t, p.write, "UPDATE idem_records SET expires = 1 WHERE expires IS NOT NULL")
		if _, err := s.Expire(t.Context(), 1); !errors.Is(err, ErrRights) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Expire() of an operator = %v, want %v", err, ErrRights)
		}

		name, db = newUser(t, b, p)
		grant(t, b, p, RoleReader, name)
		s = b.store(t, pools{write: db, read: db}, optionsOf[RoleReader]...)
		for name, call := range calls(s, id) {
			if err := call(t.Context()); reads[name] && err != nil {
				t.Errorf("%s() of a reader = %v, want <nil>", name, err)
			}
		}
		if get[int](t, db, "SELECT count(*) FROM idem_readable") == 0 {
			t.Error("a reader sees no row of the view")
		}
		if _, err := db.ExecContext(t.Context(), "DELETE FROM idem_records"); err == nil {
			t.Error("a reader may delete records")
		}
	})
}

// Without one of its rights no role starts, and the error names that one. All that are missing are in one
// message.
func TestMissingRightsAreNamedAtTheStart(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		admin := names{dialect: b.kind(), prefix: "idem_"}
		for role, opts := range optionsOf {
			name, db := newUser(t, b, p)
			grant(t, b, p, role, name)
			wanted := role.rights()
			for _, r := range wanted {
				if role == RoleOperator && r == (right{"domains", "INSERT"}) {
					continue // for RetireDomain alone
				}
				mustExec(t, p.write, "REVOKE "+r.name+" ON "+admin.table(r.table)+" FROM "+name)
				_, err := New(t.Context(), db, b.dialect, opts...)
				if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "rights: "+r.name+" on ") || !strings.Contains(err.Error(), "idem_"+r.table) || strings.Contains(err.Error(), ";") {
					t.Errorf("New() of role %d without %s on %s = %v, want that right", role, r.name, r.table, err)
				}
				mustExec(t, p.write, "GRANT "+r.name+" ON "+admin.table(r.table)+" TO "+name)
			}
			for _, of := range []string{"records", "notes"} {
				mustExec(t, p.write, "REVOKE ALL ON "+admin.table(of)+" FROM "+name)
			}
			_, err := New(t.Context(), db, b.dialect, opts...)
			for _, r := range wanted {
				named := err != nil && strings.Contains(err.Error(), "idem_"+r.table)
				if want := r.table == "records" || r.table == "notes"; named != want {
					t.Errorf("New() of role %d = %v, which names %s: %t, want %t", role, err, r.table, named, want)
				}
			}
		}
	})
}

func TestJoinChecksTheRightsOfAService(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		name, db := newUser(t, b, p)
		grant(t, b, p, RoleOperator, name)
		if engine, err := Join(t.Context(), db, b.dialect, quiet(), WithExpiry(0)); engine != nil || !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "bindings") {
			t.Errorf("Join() with the rights of an operator = %v, %v, want %v", engine, err, ErrRights)
		}
	})
}

// A service whose locks are elsewhere has no rights on the tables of locks, and stores every outcome.
func TestStoreNeedsNoRightsOnLocks(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		name, db := newUser(t, b, p)
		grant(t, b, p, RoleService, name)
		for _, of := range []string{"locks", "lock_domain"} {
			mustExec(t, p.write, "REVOKE ALL ON "+(names{dialect: b.kind(), prefix: "idem_"}).table(of)+" FROM "+name)
		}
		s := b.store(t, pools{write: db, read: db})
		for by, state := range map[string]driver.State{"": driver.StateCompleted, "alice": driver.StateCompleted, "nobody": driver.StateReleased} {
			id, a := begin(t, s, by)
			st := settlementOf(a, by)
			if st.State = state; by != "alice" {
				st.Decision = driver.Decision{}
			}
			if err := callSettle(t.Context(), s, id, st); err != nil {
				t.Errorf("Settle() as %v = %v, want <nil>", state, err)
			}
		}
	})
}

// Rights on columns are as good as one on their table, and rights of groups as one's own.
func TestRightsOfOtherKindsCount(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	p := b.migrated(t)
	name, db := newUser(t, b, p)
	group, _ := newUser(t, b, p)
	grant(t, b, p, RoleService, group)
	mustExec(t, p.write, "GRANT "+group+" TO "+name)
	mustExec(t, p.write, "REVOKE SELECT ON idem_notes FROM "+group)
	mustExec(t, p.write, "GRANT SELECT (name, noted) ON idem_notes TO "+group)
	b.store(t, pools{write: db, read: db})
	mustExec(t, p.write, "REVOKE SELECT (noted) ON idem_notes FROM "+group)
	if _, err := New(t.Context(), db, b.dialect); !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "SELECT on ") {
		t.Errorf("New() without a column = %v, want %v", err, ErrRights)
	}
}

// A user without the right to use the schema does not see the tables.
func TestSchemaThatMayNotBeUsedIsNamed(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	p := b.migrated(t)
	name, db := newUser(t, b, p)
	grant(t, b, p, RoleService, name)
	mustExec(t, p.write, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
	mustExec(t, p.write, "REVOKE USAGE ON SCHEMA public FROM "+name)
	for _, opts := range [][]Option{nil, {WithSchema("public")}} {
		if _, err := New(t.Context(), db, b.dialect, opts...); !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "USAGE on schema public") {
			t.Errorf("New() = %v, want the right on the schema", err)
		}
	}
	mustExec(t, p.write, "GRANT USAGE ON SCHEMA public TO "+name)
	b.store(t, pools{write: db, read: db})
}

func TestGrantsQuoteTheirUser(t *testing.T) {
	t.Parallel()
	for _, b := range backends()[:2] {
		t.Run(b.name, func(t *testing.T) {
			p := b.migrated(t)
			for user, want := range map[string]string{`pay"x`: ` TO "pay""x"`, "pay@10.0.0.5": map[string]string{"PostgreSQL": ` TO "pay@10.0.0.5"`, "MariaDB": " TO 'pay'@'10.0.0.5'"}[b.name]} {
				list, err := Grants(t.Context(), p.write, b.dialect, RoleReader, user)
				if user == `pay"x` && b.name == "MariaDB" {
					want = ` TO 'pay"x'@'%'`
				}
				if err != nil || slices.ContainsFunc(list, func(s string) bool { return !strings.HasSuffix(s, want) }) {
					t.Errorf("Grants(%s) = %q, %v, want %s", user, list, err, want)
				}
			}
			for _, user := range []string{"", map[string]string{"PostgreSQL": "a\x00b", "MariaDB": "a'b"}[b.name]} {
				if list, err := Grants(t.Context(), p.write, b.dialect, RoleReader, user); err == nil {
					t.Errorf("Grants(%q) = %q, want an error", user, list)
				}
			}
		})
	}
	if _, err := Grants(t.Context(), freshSQLite(t).write, dialect.SQLite, RoleService, "x"); err == nil {
		t.Error("Grants() for SQLite = <nil>, want an error")
	}
}

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
