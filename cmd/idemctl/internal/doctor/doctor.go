// Package doctor has the command that checks servers, settings, clocks and open records. Each kind
// of server is checked by a type of its own, and [report] collects what they find.
package doctor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Bounds of the checks. All of them share the first one, so that doctor ends within
// 15 s, including the end of its session.
const (
	allChecks      = 13 * time.Second
	endOfSession   = time.Second
	redisChecks    = 5 * time.Second // for all servers in parallel
	databaseChecks = 7 * time.Second // in parallel to redisChecks
	ensembleChecks = 9 * time.Second // likewise
	serverCheck    = 2 * time.Second // for one question to a ZooKeeper server
	sessionCheck   = 6 * time.Second // for a working session
	recordChecks   = 4 * time.Second
)

// maxSkew is the greatest difference between two clocks without a warning.
const maxSkew = 2 * time.Second

// Command is the command doctor.
func Command(io *cli.Streams, flags *servers.Flags) *cobra.Command {
	c := command{io, flags}
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check servers, settings, clocks and open records",
		Long: `Check the servers of --redis, --database and --zookeeper. With several flags, also
check that they fit together. Each check prints one line,

  ok|warn|fail  NAME  text

or with --json an object with check, status and detail. It takes at most 15 s. It
exits with 1 if a check failed, and with 0 if there are only warnings.

  redis               the server can be reached
  redis-version       6.2 or later
  redis-eviction      maxmemory-policy noeviction, otherwise records are lost (for a
                      replica only a warning)
  redis-read-only     replica-read-only yes, otherwise a primary that a fail-over has
                      made a replica goes on taking writes
  redis-persistence   append-only file
  redis-replicas      their number, and how stale they are
  redis-write         every shard takes a write
  redis-rights        this user has the rights of a service: for records, and without
                      --zookeeper and --database also for locks
  sentinel            the sentinel can be reached and knows the primary
  database            the database can be reached
  database-version    PostgreSQL 13, MySQL 8, MariaDB 10.6, SQLite 3.42, or later
  database-schema     the tables have the version of this build
  database-pooler     a pooler such as PgBouncer in front of PostgreSQL
  database-rights     this user has the rights of a service (not SQLite)
  database-settings   acknowledged records survive a crash, and the binary log and the
                      sql_mode of MySQL and MariaDB are not ones that refuse records
  database-write      the database accepts writes, so it is no standby
  zookeeper           the server can be reached and serves
  zookeeper-version   from the four-letter command srvr
  zookeeper-servers   three or five, so that one may fail
  zookeeper-session   the granted time-out for --session-timeout
  zookeeper-write     the quorum takes a write, and services have used the ensemble
  zookeeper-acl       znodes where any client may delete locks
  lock-domain         of the ensemble, see "store retire"
  zookeeper-history   the ensemble has not come back with older data
  clock-skew          Redis, its replicas, the database, ZooKeeper and this machine
                      within 2 s
  incarnations        Redis has the records that the services remember
  open-records        unknown, or pending for more than an hour
  unreadable-records  written by a newer build, or corrupt
  record-domains      open records of other lock domains

It leaves nothing behind. It writes a key to each shard of Redis, which expires after
a second, and znodes to ZooKeeper, which end with its sessions. It changes nothing in
a database. If no service has used an ensemble yet, it creates nothing there and
warns. With --redis the open records are those in Redis.

Give --redis and --database with the user and password of the service, because rights,
settings of the session and a pooler may be other ones for other users.

If only the services may use the znodes, give the services' --zookeeper-auth. Without
it, protected znodes are skipped with a warning.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper zk1:2181,zk2:2181,zk3:2181/payments doctor
  IDEMCTL_DATABASE=postgres://payments_service@db/payments idemctl doctor
  idemctl --redis redis+sentinel://s1:26379,s2:26379/mymaster --json doctor`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.examine(cmd.Context()) },
	}
}

type command struct {
	io      *cli.Streams
	servers *servers.Flags
}

// errUnwell means that a check failed.
var errUnwell = errors.New("doctor: at least one check failed")

// patient holds the connections for the later checks. They are nil if the servers did
// not answer.
type patient struct {
	redis     goredis.UniversalClient
	database  *sqlstore.Store
	locks     *servers.SQLLocks // in the database
	zookeeper *zookeeper.Client
	clocks    []clockReading
}

func (c *command) examine(ctx context.Context) error {
	if c.servers.Redis.URL == "" && c.servers.ZooKeeper.Servers == "" && c.servers.Database.URL == "" {
		return cli.WrongUse("doctor needs --redis, --database or --zookeeper")
	}
	var client goredis.UniversalClient
	if c.servers.Redis.URL != "" {
		var err error
		if client, err = c.servers.Redis.Connect(); err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
	}
	var db *database.DB
	if c.servers.Database.URL != "" {
		var err error
		if db, err = c.servers.Database.Open(database.Options{}); err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
	}
	var addrs []string
	var chroot string
	if c.servers.ZooKeeper.Servers != "" {
		var err error
		if addrs, chroot, err = c.servers.ZooKeeper.Ensemble(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, allChecks)
	defer cancel()
	var redis, inSQL, ensemble, together report
	var p patient
	var redisClocks, sqlClocks, ensembleClocks []clockReading
	var wg sync.WaitGroup
	if client != nil {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, redisChecks)
			defer cancel()
			if redisClocks = (&redisCheck{&redis, &c.servers.Redis}).check(ctx, client); redisClocks != nil {
				p.redis = client
			}
		})
	}
	if db != nil {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, databaseChecks)
			defer cancel()
			if p.database, sqlClocks = checkDatabase(ctx, &inSQL, &c.servers.Database, db); p.database != nil {
				p.locks = c.servers.Database.Locks(ctx, db)
			}
		})
	}
	if addrs != nil {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, ensembleChecks)
			defer cancel()
			p.zookeeper, ensembleClocks = (&ensembleCheck{&ensemble, &c.servers.ZooKeeper}).check(ctx, addrs, chroot)
		})
	}
	wg.Wait()
	defer endSession(p.zookeeper)
	if p.database != nil {
		defer func() { _ = p.database.Close() }()
	}
	p.clocks = slices.Concat(redisClocks, sqlClocks, ensembleClocks)
	(&recordCheck{&together, c.servers, &p}).check(ctx)
	return c.writeFindings(redis.findings, inSQL.findings, ensemble.findings, together.findings)
}

// endSession closes the session of the checks.
func endSession(client *zookeeper.Client) {
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endOfSession)
	defer cancel()
	_ = client.Close(ctx) // otherwise the session times out
}

// discard drops log lines, because errors become findings.
var discard = slog.New(slog.DiscardHandler)
