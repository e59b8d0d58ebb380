package sqlstore

import (
	"net/url"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The rights in docs/sql.md are enough for a service, after somebody with more has migrated.
func TestJoinedServiceNeedsNoRightToMakeTables(t *testing.T) {
	onEachServer(t, func(t *testing.T, b backend) {
		name := freshName(t)
		s := startService(t, b, serviceParts{rewrite: func(p *pools) {
			admin := p.write
			if b.dialect == PostgreSQL() {
				mustExec(t, admin, "CREATE ROLE "+name+" LOGIN")
				t.Cleanup(func() {
					mustExec(t, admin, "DROP OWNED BY "+name)
					mustExec(t, admin, "DROP ROLE "+name)
				})
				mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+name)
				u, err := url.Parse(p.dsn)
				if err != nil {
					t.Fatal(err)
				}
				u.User = url.User(name)
				p.write = open(t, "pgx", u.String())
			} else {
				cfg, err := mysqldriver.ParseDSN(p.dsn)
				if err != nil {
					t.Fatal(err)
				}
				mustExec(t, admin, "CREATE USER "+name)
				t.Cleanup(func() { mustExec(t, admin, "DROP USER "+name) })
				mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+cfg.DBName+".* TO "+name)
				cfg.User, cfg.Passwd = name, ""
				p.write = open(t, "mysql", cfg.FormatDSN())
			}
			p.read = p.write
		}, policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
		if _, err := s.pools.write.ExecContext(t.Context(), "CREATE TABLE more (n INT)"); err == nil {
			t.Fatal("the service may make tables")
		}
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.with(s.paying(402))
		s.want(s.pay("k2"), answer{status: 402, body: "paid"})
		if err := s.joined.Ping(t.Context()); err != nil {
			t.Errorf("Ping() = %v, want <nil>", err)
		}
		if _, err := s.joined.Expire(t.Context(), 10); err != nil {
			t.Errorf("Expire() = %v, want <nil>", err)
		}
	})
}
