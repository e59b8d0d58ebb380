package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// password has characters that look different in a URL. Parts of it tell, too.
const (
	password = "pä$sw%rd-7f3a"
	wrong    = "wr%ng-pa$s-91c2"
)

// mariaDB starts a server with the database payments, and runs statements on it.
func mariaDB(t *testing.T, statements ...string) (s *testserver.MariaDB, url string) {
	t.Helper()
	s = testserver.StartMariaDB(t)
	sqlExec(t, s.URL()+"mysql", append([]string{"CREATE DATABASE payments"}, statements...)...)
	return s, s.URL() + "payments"
}

// A database is restarted under two instances that pay all the while. Both go on, every key pays
// once, and every answer that was given stays.
func TestJoinedServersRestart(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (url string, restart func()){
		"postgres": func(t *testing.T) (string, func()) {
			t.Helper()
			s := testserver.StartPostgres(t)
			return s.URL(), s.Restart
		},
		"postgres, killed": func(t *testing.T) (string, func()) {
			t.Helper()
			s := testserver.StartPostgres(t)
			return s.URL(), func() { s.Kill(); s.Restart() }
		},
		"mariadb": func(t *testing.T) (string, func()) {
			t.Helper()
			s, url := mariaDB(t)
			return url, s.Restart
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, restart := start(t)
			flags := []string{"--database", database, "--resolver", "none"}
			instances := []*process{serve(t, flags...), serve(t, flags...)}
			before := instances[0].want(201, "POST", "/v1/payments", "before", orderBody)

			const payers = 4
			var wg sync.WaitGroup
			var mu sync.Mutex
			paid, halfway, restarted := 0, make(chan struct{}, payers), make(chan struct{})
			for i := range payers {
				wg.Go(func() {
					pays := func(n int) {
						p, other := instances[i%2], instances[1-i%2]
						key := fmt.Sprintf("key-%d-%d", i, n)
						status, body := p.payUntilSettled(key)
						if status != 201 {
							t.Errorf("%s: %d %s, want 201", key, status, body)
							return
						}
						if status, again := other.payUntilSettled(key); again != body {
							t.Errorf("%s at the other instance: %d %s, want %s", key, status, again, body)
						}
						mu.Lock()
						defer mu.Unlock()
						paid++
					}
					pays(0)
					halfway <- struct{}{}
					for n := 1; ; n++ {
						pays(n)
						select {
						case <-restarted:
							pays(n + 1)
							return
						default:
						}
					}
				})
			}
			for range payers {
				<-halfway
			}
			restart()
			close(restarted)
			wg.Wait()
			for _, p := range instances {
				p.requestUntil(200, "GET", "/readyz", "", "")
				if got := p.requestUntil(201, "POST", "/v1/payments", "before", orderBody); got != before {
					t.Errorf("replay: %s, want %s", got, before)
				}
				p.wantPayments(paid + 1)
			}
		})
	}
}

// A service whose database is gone says so, and still ends in order.
func TestServiceWithoutItsDatabaseStops(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (url string, stop func()){
		"postgres": func(t *testing.T) (string, func()) {
			t.Helper()
			s := testserver.StartPostgres(t)
			return s.URL(), s.Kill
		},
		"mariadb": func(t *testing.T) (string, func()) {
			t.Helper()
			s, url := mariaDB(t)
			return url, s.Pause // it accepts connections and says nothing
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, stop := start(t)
			p := serve(t, "--database", database)
			p.want(201, "POST", "/v1/payments", "k", orderBody)
			stop()
			p.requestUntil(503, "GET", "/readyz", "", "")
			if body := p.want(503, "POST", "/v1/payments", "k2", orderBody); !strings.Contains(body, `"unavailable"`) {
				t.Errorf("payment without the database: %s, want unavailable", body)
			}
			p.stops()
		})
	}
}

// The service connects with a password, and never says it, nor a wrong one.
func TestPasswordsAreNotSaid(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (url string, restart func()){
		"postgres": func(t *testing.T) (string, func()) {
			t.Helper()
			s := testserver.StartPostgres(t)
			sqlExec(t, s.URL(), "CREATE USER app PASSWORD '"+password+"'", "CREATE DATABASE payments OWNER app")
			var rules string
			db := scratch.Open(t, s.URL())
			if err := db.Write.QueryRow("SHOW hba_file").Scan(&rules); err != nil {
				t.Fatal(err)
			}
			rule := func(user, method string) string { return "host all " + user + " 127.0.0.1/32 " + method + "\n" }
			if err := os.WriteFile(rules, []byte(rule("idemkeeper", "trust")+rule("all", "scram-sha-256")), 0o600); err != nil {
				t.Fatal(err)
			}
			sqlExec(t, s.URL(), "SELECT pg_reload_conf()")
			return strings.Replace(s.URL(), "/postgres?", "/payments?", 1), s.Restart
		},
		"mariadb": func(t *testing.T) (string, func()) {
			t.Helper()
			s, url := mariaDB(t, "CREATE USER app@'%' IDENTIFIED BY '"+password+"'", "GRANT ALL ON payments.* TO app@'%'")
			return url, s.Restart
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, restart := start(t)
			right, bad := withUser(t, database, "app", password), withUser(t, database, "app", wrong)
			secrets := []string{password, wrong, "7f3a", "91c2"}
			refused := refused(t, "--database", bad)
			if said := refused.Stderr.Lines(); len(said) != 1 || !strings.Contains(said[0], "--database") || !strings.Contains(said[0], "app") {
				t.Errorf("said %q, want one line that names the flag and the user", said)
			}
			p := serve(t, "--database", right, "--log-level", "debug")
			p.want(201, "POST", "/v1/payments", "k", orderBody)
			restart()
			p.requestUntil(201, "POST", "/v1/payments", "after", orderBody)
			for _, args := range []string{"doctor", "record list", "record show --scope merchant_demo k"} {
				for _, name := range []string{right, bad} {
					out, code := idemctl(t, name, strings.Fields(args)...)
					if (code == 0) != (name == right) {
						t.Errorf("idemctl %s = %d %s, with the right password: %v", args, code, out, name == right)
					}
					for _, s := range secrets {
						if strings.Contains(out, s) {
							t.Errorf("idemctl %s said %q: %s", args, s, out)
						}
					}
				}
			}
			p.wantNoText(secrets...)
			refused.wantNoText(secrets...)
		})
	}
}

// A database that takes no writes is told at start and while the service runs. Afterwards the
// service goes on.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (url string, set func(readOnly bool)){
		"postgres": func(t *testing.T) (string, func(bool)) {
			t.Helper()
			s := testserver.StartPostgres(t)
			return s.URL(), func(readOnly bool) {
				// Sessions of before may learn of it late, so they end when new ones know it.
				sqlExec(t, s.URL()+"&default_transaction_read_only=off", fmt.Sprintf("ALTER SYSTEM SET default_transaction_read_only = %v", readOnly), "SELECT pg_reload_conf()")
				for known := !readOnly; known != readOnly; {
					db := scratch.Open(t, s.URL())
					if err := db.Write.QueryRow("SELECT current_setting('default_transaction_read_only') = 'on'").Scan(&known); err != nil {
						t.Fatal(err)
					}
					db.Close()
				}
				sqlExec(t, s.URL(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
			}
		},
		"mariadb": func(t *testing.T) (string, func(bool)) {
			t.Helper()
			// A user without the right to write in spite of read_only.
			s, url := mariaDB(t, "CREATE USER app@'%'", "GRANT ALL ON payments.* TO app@'%'")
			return withUser(t, url, "app", ""), func(readOnly bool) {
				sqlExec(t, s.URL()+"mysql", fmt.Sprintf("SET GLOBAL read_only = %v", readOnly))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, set := start(t)
			p := serve(t, "--database", database)
			paid := p.want(201, "POST", "/v1/payments", "k", orderBody)
			set(true)
			p.requestUntil(503, "GET", "/readyz", "", "")
			if body := p.requestUntil(503, "POST", "/v1/payments", "k2", orderBody); !strings.Contains(body, `"unavailable"`) {
				t.Errorf("payment on a read-only database: %s, want unavailable", body)
			}
			// A young answer has to be on the disk first, and MariaDB tells by a write.
			if status, got, err := p.request("POST", "/v1/payments", "k", orderBody); status != 503 && got != paid {
				t.Errorf("replay on a read-only database: %d %s %v, want %s or 503", status, got, err, paid)
			}
			if said := refused(t, "--database", database).Stderr.Lines(); len(said) != 1 || !strings.Contains(said[0], "read") {
				t.Errorf("said %q, want one line about read-only", said)
			}
			set(false)
			p.requestUntil(200, "GET", "/readyz", "", "")
			p.requestUntil(201, "POST", "/v1/payments", "k2", orderBody)
			if got := p.requestUntil(201, "POST", "/v1/payments", "k", orderBody); got != paid {
				t.Errorf("replay: %s, want %s", got, paid)
			}
			p.wantPayments(2)
		})
	}
}

// Tables of earlier and later builds.
func TestSchemasOfOtherBuilds(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		p := serve(t, "--database", database)
		paid := p.want(201, "POST", "/v1/payments", "k", orderBody)

		// The records' table goes while the service runs.
		sqlExec(t, database, "ALTER TABLE idem_records RENAME TO put_aside")
		for _, key := range []string{"k", "k2"} {
			if body := p.want(503, "POST", "/v1/payments", key, orderBody); !strings.Contains(body, `"unavailable"`) {
				t.Errorf("payment without the table: %s, want unavailable", body)
			}
		}
		sqlExec(t, database, "ALTER TABLE put_aside RENAME TO idem_records")
		if got := p.want(201, "POST", "/v1/payments", "k", orderBody); got != paid {
			t.Errorf("replay: %s, want %s", got, paid)
		}
		p.wantPayments(1)
		p.Kill(t)

		// A newer build has migrated.
		sqlExec(t, database, "INSERT INTO idem_schema (version, applied) VALUES (99, 0)")
		if said := refused(t, "--database", database).Stderr.Lines(); len(said) != 1 || !strings.Contains(said[0], "newer build") {
			t.Errorf("said %q, want one line about a newer build", said)
		}

		// A build from before the store in SQL has left a ledger alone.
		sqlExec(t, database, "DROP VIEW idem_readable")
		for _, table := range []string{"schema", "records", "bindings", "domains", "decisions", "notes", "never", "locks", "lock_domain"} {
			sqlExec(t, database, "DROP TABLE IF EXISTS idem_"+table)
		}
		newer := serve(t, "--database", database)
		newer.want(201, "POST", "/v1/payments", "k3", orderBody)
		newer.wantPayments(2)
	})
}

// The flags around the store work with records in SQL, too.
func TestOptionsOfJoinedService(t *testing.T) {
	t.Parallel()
	zookeeper := func(t *testing.T) []string {
		t.Helper()
		return []string{"--zookeeper", strings.Join(testserver.SharedZooKeeper(t), ",") + testserver.Chroot(t), "--zookeeper-tick", "500ms", "--session-timeout", "6s"}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	for name, tt := range map[string]struct {
		flags func(t *testing.T) []string
		log   string
	}{
		"ZooKeeper elects": {zookeeper, "lock=joined store=sql"},
		"marked keys":      {func(t *testing.T) []string { t.Helper(); return append(zookeeper(t), "--durable-markers") }, "lock=zookeeper store=sql"},
		"sealed answers": {func(*testing.T) []string {
			return []string{"--response-keys", fmt.Sprintf("k1=%s", base64.StdEncoding.EncodeToString(key))}
		}, "lock=joined store=sql"},
		"Redis is not used": {func(*testing.T) []string { return []string{"--redis", "redis://127.0.0.1:1", "--token-store", "sql"} }, "Redis is not used"},
		"open payments":     {func(*testing.T) []string { return []string{"--max-open", "1", "--wait", "5s"} }, "lock=joined"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := append(tt.flags(t), "--database", freshDatabases["postgres"](t))
			p := serve(t, flags...)
			p.WaitLog(t, tt.log)
			first := p.want(201, "POST", "/v1/payments", "k", orderBody)
			if _, err := p.call("over-grpc"); err != nil {
				t.Error(err)
			}
			p.Kill(t)
			p = serve(t, flags...)
			status, again := p.payUntilSettled("k")
			if status != 201 || again != first {
				t.Errorf("replay after a restart: %d %s, want %s", status, again, first)
			}
			p.want(422, "POST", "/v1/payments", "k", otherOrder)
			p.wantPayments(2)
		})
	}
}
