package wiring

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// atTheStart are faults that keep a service from starting.
var atTheStart = []fault{
	{"the dialect is MySQL, and the server PostgreSQL", func(t *testing.T) string {
		_, err := sqlstore.Join(t.Context(), postgres(t), dialect.MySQL)
		return text(err)
	}, `it is MySQL, and the database is PostgreSQL`, `use dialect.PostgreSQL`},
	{"the dialect is MySQL, and the server PostgreSQL, with a lock", func(t *testing.T) string {
		_, err := sqllock.New(t.Context(), postgres(t), dialect.MySQL)
		return text(err)
	}, `it is MySQL, and the database is PostgreSQL`, `use dialect.PostgreSQL`},
	{"SQLite in a folder that cannot be written to", func(t *testing.T) string {
		db := scratch.Open(t, "sqlite:"+filepath.Join(unwritable(t), "payments.db"))
		_, err := sqlstore.New(t.Context(), db.Write, dialect.SQLite, db.StoreOptions()...)
		return text(err)
	}, `payments.db: permission denied`, `let the user of this process write to its folder`},
	{"SQLite in a folder that cannot be written to, migrating", func(t *testing.T) string {
		db := scratch.Open(t, "sqlite:"+filepath.Join(unwritable(t), "payments.db"))
		return text(sqlstore.Migrate(t.Context(), db.Write, dialect.SQLite))
	}, `payments.db: permission denied`, `let the user of this process write to its folder`},
	{"the port of Redis is PostgreSQL's, for records", func(t *testing.T) string {
		_, err := redisstore.New(t.Context(), redisAt(t, addr(t, testserver.SharedPostgres(t))))
		return text(err)
	}, `127.0.0.1:\d+ does not answer as Redis does`, `look at the address and its port`},
	{"the port of Redis is PostgreSQL's, for locks", func(t *testing.T) string {
		_, err := redislock.New(t.Context(), redisAt(t, addr(t, testserver.SharedPostgres(t))))
		return text(err)
	}, `127.0.0.1:\d+ does not answer as Redis does`, `look at the address and its port`},
	{"the port of PostgreSQL accepts and is silent", func(t *testing.T) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = l.Close() })
		db, err := sql.Open("pgx", "postgres://payments@"+l.Addr().String()+"/payments?sslmode=disable")
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = db.Close() })
		_, err = sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
		return text(err)
	}, `no answer within 10s`, `is that the address and the port of PostgreSQL`},
	{"no rights at all", func(t *testing.T) string {
		_, err := sqlstore.Join(t.Context(), asUser(t, ""), dialect.PostgreSQL)
		return text(err)
	}, `lacks rights: .*SELECT, INSERT, UPDATE, DELETE on .*idem_records`, `idemctl store grants prints the GRANT statements .docs/sql.md#rights`},
	{"the right to read alone", func(t *testing.T) string {
		_, err := sqlstore.Join(t.Context(), asUser(t, "SELECT"), dialect.PostgreSQL)
		return text(err)
	}, `lacks rights: .*INSERT, UPDATE, DELETE on .*idem_records`, `idemctl store grants prints the GRANT statements .docs/sql.md#rights`},
	{"the right to read alone, for pgx", func(t *testing.T) string {
		pool, err := pgxpool.New(t.Context(), userURL(t, "SELECT"))
		kit.Fatal(t, err)
		t.Cleanup(pool.Close)
		_, err = pgxstore.Join(t.Context(), pool)
		return text(err)
	}, `lacks rights: .*INSERT, UPDATE, DELETE on .*idem_records`, `idemctl store grants prints the GRANT statements .docs/sql.md#rights`},
	{"the right to read alone, for records beside a lock", func(t *testing.T) string {
		_, err := sqlstore.New(t.Context(), asUser(t, "SELECT"), dialect.PostgreSQL)
		return text(err)
	}, `lacks rights: .*INSERT, UPDATE, DELETE on .*idem_records`, `idemctl store grants prints the GRANT statements .docs/sql.md#rights`},
	{"the right to read alone, for locks", func(t *testing.T) string {
		_, err := sqllock.New(t.Context(), asUser(t, "SELECT"), dialect.PostgreSQL)
		return text(err)
	}, `lacks a right on the tables of locks`, `idemctl store grants prints the GRANT statements .docs/sql.md#rights`},
	{"a lock in Redis with records in memory", func(t *testing.T) string {
		locks, err := redislock.New(t.Context(), redisAt(t, addr(t, testserver.SharedRedis(t))))
		kit.Fatal(t, err)
		closing(t, locks.Close)
		_, err = idem.New(locks, memorystore.New())
		return text(err)
	}, `each of them would run a key again`, `share the store, or say WithSingleInstance`},
	{"two teams with one witness, of stores with other prefixes", func(t *testing.T) string {
		witness := recipes.MustNewRegister(zk(t), "/idem/redis")
		at := func(string) *recipes.Register { return witness }
		client := redisAt(t, addr(t, testserver.SharedRedis(t)))
		_, err := redisstore.New(t.Context(), client, redisstore.WithPrefix(testserver.KeyPrefix(t)), redisstore.WithWitness(at))
		kit.Fatal(t, err)
		_, err = redisstore.New(t.Context(), client, redisstore.WithPrefix(testserver.KeyPrefix(t)), redisstore.WithWitness(at))
		return text(err)
	}, `the witness belongs to the store with the prefix`, `give each store a witness of its own, see WithWitness`},
	{"two teams with one witness, on other servers", func(t *testing.T) string {
		at := recipes.Registers(zk(t))
		_, err := redisstore.New(t.Context(), redisAt(t, addr(t, testserver.SharedRedis(t))), redisstore.WithWitness(at))
		kit.Fatal(t, err)
		second, err := redisstore.New(t.Context(), redisAt(t, testserver.StartRedis(t).Addr()), redisstore.WithWitness(at))
		return fmt.Sprint(text(err), second.Ping(t.Context()))
	}, `the witness belongs to another service, because it was written for another address.* witness_server=127`, `give this service a prefix or a chroot of its own`},
}

// postgres is a database with the tables.
func postgres(t *testing.T) *sql.DB {
	t.Helper()
	_, db := scratch.Database(t, testserver.SharedPostgres(t))
	return db.Write
}

// asUser is a database with the tables, used by one who has these rights alone.
func asUser(t *testing.T, rights string) *sql.DB {
	t.Helper()
	return scratch.Open(t, userURL(t, rights)).Write
}

func userURL(t *testing.T, rights string) string {
	t.Helper()
	name, db := scratch.Database(t, testserver.SharedPostgres(t))
	return userIn(t, name, db.Write, rights)
}

func userOf(t *testing.T, name string, admin *sql.DB, rights string) *sql.DB {
	t.Helper()
	return scratch.Open(t, userIn(t, name, admin, rights)).Write
}

func userIn(t *testing.T, name string, admin *sql.DB, rights string) string {
	t.Helper()
	user := "user_" + strings.ToLower(driver.NewNonce().String())
	for _, statement := range []string{"CREATE ROLE " + user + " LOGIN", "GRANT " + rights + " ON ALL TABLES IN SCHEMA public TO " + user} {
		if rights == "" && strings.HasPrefix(statement, "GRANT") {
			continue
		}
		_, err := admin.ExecContext(t.Context(), statement)
		kit.Fatal(t, err)
	}
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), "DROP OWNED BY "+user+"; DROP ROLE "+user)
		kit.Fatal(t, err)
	})
	u, err := url.Parse(name)
	kit.Fatal(t, err)
	u.User = url.User(user)
	return u.String()
}

// addr is the address in a URL.
func addr(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	kit.Fatal(t, err)
	return u.Host
}

func redisAt(t *testing.T, addr string) goredis.UniversalClient {
	t.Helper()
	client, err := redisstore.Connect("redis://" + addr)
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func zk(t *testing.T) *zookeeper.Client {
	t.Helper()
	c, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t)})
	kit.Fatal(t, err)
	closing(t, c.Close)
	return c
}

// unwritable is a folder in which nobody makes a file, root included.
func unwritable(t *testing.T) string {
	t.Helper()
	if os.Getuid() == 0 {
		return "/sys"
	}
	dir := t.TempDir()
	kit.Fatal(t, os.Chmod(dir, 0o500))
	return dir
}

func inRedis(t *testing.T, client goredis.UniversalClient) *idem.Engine {
	t.Helper()
	locks, err := redislock.New(t.Context(), client)
	kit.Fatal(t, err)
	closing(t, locks.Close)
	store, err := redisstore.New(t.Context(), client)
	kit.Fatal(t, err)
	e, err := idem.New(locks, store)
	kit.Fatal(t, err)
	closing(t, e.Close)
	return e
}
