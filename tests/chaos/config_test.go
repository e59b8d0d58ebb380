package chaos

import (
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// configuration is a set of servers with their faults.
type configuration struct {
	name    string
	small   bool // part of the usual test run
	servers func(c *chaos)
}

// configurations are what the sample can be built of. The ledger is a PostgreSQL or a MariaDB
// that is killed now and then.
var configurations = []configuration{
	// Nothing is ever lost, so every key ends with its payment.
	{"plain", true, func(c *chaos) {
		c.sharedZooKeeper()
		c.ledger()
		c.durableRedis()
	}},
	// Redis loses everything, again and again. The markers in ZooKeeper remember.
	{"wiped", true, func(c *chaos) {
		c.sharedZooKeeper()
		c.ledger()
		c.Redis, c.mayLose = testserver.StartRedis(c.t), true
		c.flags = []string{kit.DurableMarkers}
		if c.unsolved = c.seed%2 == 1; c.unsolved {
			c.flags = append(c.flags, "--resolver", "none")
		}
		c.lane("redis", 2*time.Second, lasting(0, 0, wiped{c.Redis}))
	}},
	// The records commit with the payments. There is no other server, and no resolver.
	{"joined", true, func(c *chaos) {
		c.ledger()
		c.flags = []string{"--token-store", "sql", "--resolver", "none"}
		c.Store = []string{"IDEMCTL_DATABASE=" + c.books}
	}},
	// The Redis of the records has the locks too, and there is no ZooKeeper. A step of its clock
	// ends locks under their holders.
	{"redis", false, func(c *chaos) {
		c.ledger()
		c.durableRedis()
	}},
	// An ensemble comes back with older data, and the records in Redis remember.
	{"restored", false, func(c *chaos) {
		c.ensemble(true)
		c.ledger()
		c.durableRedis()
	}},
	// The records are in PostgreSQL, and the locks and markers in an ensemble.
	{"sql", false, func(c *chaos) {
		c.ensemble(true)
		c.ledger()
		c.flags = []string{"--token-store", "sql", kit.DurableMarkers}
		c.Store = []string{"IDEMCTL_DATABASE=" + c.books}
	}},
	// The locks are rows beside the records and the payments. A step of the database's clock ends locks
	// under their holders.
	{"rows", false, func(c *chaos) {
		c.ledger()
		c.rows()
	}},
	{"rows-pooled", false, func(c *chaos) {
		c.ledger()
		c.rows()
		c.pooled = testserver.StartPgBouncer(c.t, c.books).URL("postgres")
	}},
	{"rows-mariadb", false, func(c *chaos) {
		m := testserver.StartMariaDB(c.t)
		c.books = m.URL() + "payments"
		admin, err := database.Open(m.URL()+"mysql", database.Options{})
		if err != nil {
			c.t.Fatal(err)
		}
		defer admin.Close()
		if _, err := admin.Write.ExecContext(c.t.Context(), "CREATE DATABASE payments"); err != nil {
			c.t.Fatal(err)
		}
		c.lane("database", 8*time.Second,
			lasting(0, time.Second, serverKilled{"database", m}),
			lasting(500*time.Millisecond, 4*time.Second, serverPaused{"database", m}))
		c.rows()
	}},
	// A fail-over loses the latest records. The markers remember.
	{"sentinel", false, func(c *chaos) {
		c.ensemble(false)
		c.ledger()
		s := testserver.StartSentinel(c.t, 3, testserver.OnRedisMachine(c.machine))
		c.replicated("redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + testserver.SentinelMaster)
		c.lane("redis", 6*time.Second, append(clockFaults("redis", s.Primary(), s.Replica()),
			lasting(0, time.Second, failedOver{s, false}),
			lasting(500*time.Millisecond, 2*time.Second, failedOver{s, true}),
			lasting(4*time.Second, 8*time.Second, primaryPaused{s}))...)
	}},
	// Slots move from master to master, with their records, and replicas take over.
	{"cluster", false, func(c *chaos) {
		c.ensemble(false)
		c.ledger()
		cluster := testserver.StartRedisCluster(c.t, 3, testserver.OnRedisMachine(c.machine), testserver.WithClusterReplicas())
		c.replicated("redis://" + strings.Join(cluster.Addrs(), ",redis://"))
		moved, nodes := lasting(0, 50*time.Millisecond, slotsMoved{cluster}), append(cluster.Nodes(), cluster.Replicas()...)
		c.lane("redis", 2*time.Second, append(clockFaults("redis", nodes...), moved, moved, moved, moved,
			lasting(0, time.Second, takenOver{cluster}))...)
	}},
}

// sharedZooKeeper is for configurations in which ZooKeeper itself stays well.
func (c *chaos) sharedZooKeeper() {
	c.ZK, c.Chroot = testserver.SharedZooKeeper(c.t), testserver.Chroot(c.t)
}

// ensemble has three members, which lose their leader, a clock or a disk. If the token store keeps its
// records, the ensemble may also come back with older data. The markers are not enough then.
func (c *chaos) ensemble(recordsStay bool) {
	e := testserver.StartEnsemble(c.t, 3, testserver.OnZooKeeperMachine(c.machine))
	c.ZK, c.Chroot = e.Hosts(), testserver.Chroot(c.t)
	m := e.Members()
	faults := append(machineFaults("zookeeper", m...),
		lasting(0, 3*time.Second, leaderKilled{e}),
		lasting(time.Second, 8*time.Second, leaderPaused{e}),
		lasting(0, 3*time.Second, serverKilled{"zookeeper", m[0]}))
	if recordsStay {
		restored := lasting(2*time.Second, 5*time.Second, ensembleRestored{e})
		faults = append(faults, restored, restored, restored)
	}
	c.lane("zookeeper", 8*time.Second, faults...)
}

// durableRedis keeps whatever it has acknowledged.
func (c *chaos) durableRedis() {
	c.Redis = testserver.StartRedis(c.t, testserver.OnRedisMachine(c.machine), testserver.WithRedisArgs("--appendonly", "yes", "--appendfsync", "always"))
	c.lane("redis", 5*time.Second, append(machineFaults("redis", c.Redis),
		lasting(0, time.Second, serverKilled{"redis", c.Redis}),
		lasting(500*time.Millisecond, 4*time.Second, serverPaused{"redis", c.Redis}),
		lasting(time.Second, 5*time.Second, memoryFull{c.Redis}))...)
}

// ledger is the database of the payments.
func (c *chaos) ledger() {
	p := testserver.StartPostgresOn(c.t, c.machine)
	c.books = p.URL()
	c.lane("database", 8*time.Second, append(machineFaults("database", p),
		lasting(0, time.Second, serverKilled{"database", p}),
		lasting(500*time.Millisecond, 4*time.Second, serverPaused{"database", p}))...)
}

// rows keeps records and locks in the database of the payments.
func (c *chaos) rows() {
	c.flags = []string{"--token-store", "sql", "--lock", "sql"}
	c.Store = []string{"IDEMCTL_DATABASE=" + c.books}
}

// replicated is a token store of several servers that tell clients each other's addresses.
func (c *chaos) replicated(url string) {
	c.redisURL, c.mayLose = url, true
	c.flags = []string{kit.DurableMarkers}
	c.Store = []string{"IDEMCTL_REDIS=" + url}
}

// onMachine is a server on a machine of its own.
type onMachine interface {
	StepClock(offset time.Duration)
	FillDisk()
	RecoverDisk()
}

// machineFaults are those of the servers' machines. They strike one server at a time.
func machineFaults[S onMachine](name string, servers ...S) []choice {
	all := clockFaults(name, servers...)
	for _, s := range servers {
		if testserver.CanFillDisks() {
			all = append(all, lasting(time.Second, 4*time.Second, diskFilled{name, s}))
		}
	}
	return all
}

// clockFaults are for servers that keep nothing on their disk.
func clockFaults[S onMachine](name string, servers ...S) (all []choice) {
	for _, s := range servers {
		all = append(all, lasting(time.Second, 5*time.Second, clockStepped{name, s}))
	}
	return all
}
