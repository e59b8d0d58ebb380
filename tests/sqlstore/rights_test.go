package sqlstore_test

import (
	"database/sql"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
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
func grant(t *testing.T, b backend, p pools, role sqlstore.Role, user string) {
	t.Helper()
	list, err := sqlstore.Grants(t.Context(), p.write, b.dialect, role, user)
	if err != nil {
		t.Fatalf("Grants() = %v, want <nil>", err)
	}
	for _, statement := range list {
		mustExec(t, p.write, statement)
	}
}

// optionsOf are how each role opens the store.
var optionsOf = map[sqlstore.Role][]sqlstore.Option{sqlstore.RoleService: {quiet()}, sqlstore.RoleOperator: {quiet(), sqlstore.WithExpiry(0)}, sqlstore.RoleReader: {quiet(), sqlstore.WithReadOnly()}}

func TestServiceWorksWithItsRightsAlone(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{rewrite: func(p *pools) {
			name, db := newUser(t, b, *p)
			grant(t, b, *p, sqlstore.RoleService, name)
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
		mustExec(t, s.pools.write, s.store.sql("UPDATE {records} SET expires = 1"))
		mustExec(t, s.pools.write, s.store.sql("UPDATE {bindings} SET expires = 1"))
		_, expired := s.joined.Expire(t.Context(), 10)
		id, a := begin(t, s.store, "doubtful")
		noted := s.joined.NoteFence(t.Context(), driver.Fence{Domain: "locks", Token: 1})
		if err := errors.Join(expired, noted, s.joined.Ping(t.Context()), s.joined.DeclareSealed(t.Context()),
			callSettle(t.Context(), s.store, id, settlementOf(a, "alice"))); err != nil {
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
		grant(t, b, p, sqlstore.RoleOperator, name)
		s := b.store(t, pools{write: db, read: db}, optionsOf[sqlstore.RoleOperator]...)
		id, a := begin(t, s, "doubtful")
		var failed []error
		for name, call := range calls(s, key(2)) {
			if err := call(t.Context()); name != "Expire" && errors.Is(err, sqlstore.ErrRights) {
				failed = append(failed, err)
			}
		}
		failed = append(failed, callSettle(t.Context(), s, id, settlementOf(a, "alice")))
		if err := errors.Join(failed...); err != nil {
			t.Errorf("an operator cannot: %v", err)
		}
		mustExec(t, p.write, "UPDATE idem_records SET expires = 1 WHERE expires IS NOT NULL")
		if _, err := s.Expire(t.Context(), 1); !errors.Is(err, sqlstore.ErrRights) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Expire() of an operator = %v, want %v", err, sqlstore.ErrRights)
		}

		name, db = newUser(t, b, p)
		grant(t, b, p, sqlstore.RoleReader, name)
		s = b.store(t, pools{write: db, read: db}, optionsOf[sqlstore.RoleReader]...)
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

type right struct{ table, name string }

var granted = regexp.MustCompile(`^GRANT ([A-Z, ]+) ON \S*idem_(\w+)\S* TO`)

// rightsOf are the rights that a store of a role needs on its tables. The view is for people, and the locks are those of
// package lock/sql.
func rightsOf(t *testing.T, b backend, p pools, role sqlstore.Role, user string) (list []right) {
	t.Helper()
	statements, err := sqlstore.Grants(t.Context(), p.write, b.dialect, role, user)
	must(t, err)
	for _, s := range statements {
		if m := granted.FindStringSubmatch(s); m != nil && m[2] != "readable" && !strings.HasPrefix(m[2], "lock") {
			for name := range strings.SplitSeq(m[1], ", ") {
				list = append(list, right{m[2], name})
			}
		}
	}
	if len(list) == 0 {
		t.Fatalf("Grants() = %q, which names no table", statements)
	}
	return list
}

// Without one of its rights no role starts, and the error names that one. All that are missing are in one
// message.
func TestMissingRightsAreNamedAtTheStart(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		table := func(name string) string { return b.sql("idem_", "{"+name+"}") }
		for role, opts := range optionsOf {
			name, db := newUser(t, b, p)
			grant(t, b, p, role, name)
			wanted := rightsOf(t, b, p, role, name)
			for _, r := range wanted {
				if role == sqlstore.RoleOperator && r == (right{"domains", "INSERT"}) {
					continue // for RetireDomain alone
				}
				mustExec(t, p.write, "REVOKE "+r.name+" ON "+table(r.table)+" FROM "+name)
				_, err := sqlstore.New(t.Context(), db, b.dialect, opts...)
				if !errors.Is(err, sqlstore.ErrRights) || !strings.Contains(err.Error(), "rights: "+r.name+" on ") || !strings.Contains(err.Error(), "idem_"+r.table) || strings.Contains(err.Error(), ";") {
					t.Errorf("New() of role %d without %s on %s = %v, want that right", role, r.name, r.table, err)
				}
				mustExec(t, p.write, "GRANT "+r.name+" ON "+table(r.table)+" TO "+name)
			}
			for _, of := range []string{"records", "notes"} {
				mustExec(t, p.write, "REVOKE ALL ON "+table(of)+" FROM "+name)
			}
			_, err := sqlstore.New(t.Context(), db, b.dialect, opts...)
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
		grant(t, b, p, sqlstore.RoleOperator, name)
		if engine, err := sqlstore.Join(t.Context(), db, b.dialect, quiet(), sqlstore.WithExpiry(0)); engine != nil || !errors.Is(err, sqlstore.ErrRights) || !strings.Contains(err.Error(), "bindings") {
			t.Errorf("Join() with the rights of an operator = %v, %v, want %v", engine, err, sqlstore.ErrRights)
		}
	})
}

// A service whose locks are elsewhere has no rights on the tables of locks, and stores every outcome.
func TestStoreNeedsNoRightsOnLocks(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		name, db := newUser(t, b, p)
		grant(t, b, p, sqlstore.RoleService, name)
		for _, of := range []string{"locks", "lock_domain"} {
			mustExec(t, p.write, "REVOKE ALL ON "+b.sql("idem_", "{"+of+"}")+" FROM "+name)
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
	grant(t, b, p, sqlstore.RoleService, group)
	mustExec(t, p.write, "GRANT "+group+" TO "+name)
	mustExec(t, p.write, "REVOKE SELECT ON idem_notes FROM "+group)
	mustExec(t, p.write, "GRANT SELECT (name, noted) ON idem_notes TO "+group)
	b.store(t, pools{write: db, read: db})
	mustExec(t, p.write, "REVOKE SELECT (noted) ON idem_notes FROM "+group)
	if _, err := sqlstore.New(t.Context(), db, b.dialect); !errors.Is(err, sqlstore.ErrRights) || !strings.Contains(err.Error(), "SELECT on ") {
		t.Errorf("New() without a column = %v, want %v", err, sqlstore.ErrRights)
	}
}

// A user without the right to use the schema does not see the tables.
func TestSchemaThatMayNotBeUsedIsNamed(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	p := b.migrated(t)
	name, db := newUser(t, b, p)
	grant(t, b, p, sqlstore.RoleService, name)
	mustExec(t, p.write, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
	mustExec(t, p.write, "REVOKE USAGE ON SCHEMA public FROM "+name)
	for _, opts := range [][]sqlstore.Option{nil, {sqlstore.WithSchema("public")}} {
		if _, err := sqlstore.New(t.Context(), db, b.dialect, opts...); !errors.Is(err, sqlstore.ErrRights) || !strings.Contains(err.Error(), "USAGE on schema public") {
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
				list, err := sqlstore.Grants(t.Context(), p.write, b.dialect, sqlstore.RoleReader, user)
				if user == `pay"x` && b.name == "MariaDB" {
					want = ` TO 'pay"x'@'%'`
				}
				if err != nil || slices.ContainsFunc(list, func(s string) bool { return !strings.HasSuffix(s, want) }) {
					t.Errorf("Grants(%s) = %q, %v, want %s", user, list, err, want)
				}
			}
			for _, user := range []string{"", map[string]string{"PostgreSQL": "a\x00b", "MariaDB": "a'b"}[b.name]} {
				if list, err := sqlstore.Grants(t.Context(), p.write, b.dialect, sqlstore.RoleReader, user); err == nil {
					t.Errorf("Grants(%q) = %q, want an error", user, list)
				}
			}
		})
	}
	if _, err := sqlstore.Grants(t.Context(), freshSQLite(t).write, dialect.SQLite, sqlstore.RoleService, "x"); err == nil {
		t.Error("Grants() for SQLite = <nil>, want an error")
	}
}
