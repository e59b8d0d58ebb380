package record

import (
	"context"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// looker looks at the records and locks of the command's servers. It knows no policies, because
// those are in the services.
func (c *looks) looker(b *servers.Backends) (*operate.Looker, error) {
	in := inspectors{joined: noTransactions{}}
	if b.ZooKeeper != nil {
		in.zookeeper, in.ensemble = b.ZooKeeper.Locker(), b.ZooKeeper
	}
	if b.Joined != nil {
		in.joined = b.Joined
	}
	if b.SQLLocks != nil {
		in.sql = b.SQLLocks
	}
	if b.Redis != nil {
		redis, err := redislock.NewInspector(b.Redis, redislock.WithPrefix(c.servers.Redis.Prefix))
		if err != nil {
			return nil, err
		}
		in.redis = redis
	}
	return &operate.Looker{Store: b.Store, Locks: in.of}, nil
}

// inspectors are the lock services that a command can see. Those it cannot see are nil.
type inspectors struct {
	zookeeper, redis, joined driver.LockInspector
	sql                      *servers.SQLLocks
	ensemble                 *zookeeper.Client
}

// of returns where the lock of a record would be, and nil if the command cannot see that. A
// retired domain has no locks. Its keys are locked where the services lock now, which is in the
// ensemble if there is one.
func (in *inspectors) of(rec *driver.Record) driver.LockInspector {
	switch domain := rec.Attempt.Fence.Domain; {
	case domain == driver.JoinedDomain:
		return in.joined
	case in.sql.Has(domain):
		return in.sql
	case in.zookeeper != nil && (in.redis == nil || in.ensemble.Domain() == domain):
		return in.zookeeper
	case in.zookeeper != nil && servers.OfEnsemble(domain, in.ensemble.Domain()): // below another --lock-root
		return nil
	case in.redis != nil:
		return in.redis
	}
	return nil
}

// noTransactions stands for the joined transactions of SQLite. A record that is seen open there
// has no running transaction, because a pending one is never committed.
type noTransactions struct{}

// HeldBy implements [driver.LockInspector].
func (noTransactions) HeldBy(context.Context, driver.KeyID) (driver.Holder, bool, error) {
	return driver.Holder{}, false, nil
}

// DomainOf implements [driver.LockInspector].
func (noTransactions) DomainOf(context.Context, driver.KeyID) (string, error) {
	return driver.JoinedDomain, nil
}

// open connects a command that only reads. It leaves an unreachable ensemble out, with a
// message.
func (c *looks) open(ctx context.Context) (look *operate.Looker, done func(), err error) {
	b, err := c.servers.Open(ctx, servers.Need{ReadOnly: true})
	if err != nil {
		return nil, nil, err
	}
	if b.NoEnsemble != nil {
		what := "whether records were lost"
		if b.Redis == nil {
			what = "who holds locks"
		}
		c.print.io.Sayf("cannot tell %s: %s", what, operate.OneLine(b.NoEnsemble.Error()))
	}
	if look, err = c.looker(b); err != nil {
		b.Close()
		return nil, nil, err
	}
	return look, b.Close, nil
}
