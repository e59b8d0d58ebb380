package recipes

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

const (
	patience = zktest.Patience
	testTick = zktest.Tick
)

var (
	clientOf     = recipetest.ClientOf
	config       = recipetest.Config
	crowd        = recipetest.Crowd
	open         = recipetest.Open
	sessionOf    = recipetest.SessionOf
	sharedConfig = recipetest.SharedConfig

	await    = zktest.Await
	bounded  = zktest.Bounded
	canceled = zktest.Canceled
	create   = zktest.Create
	newID    = zktest.NewID
	password = zktest.Password
	rawConn  = zktest.RawConn
	request  = zktest.Request
	until    = zktest.Until

	mine     = zookeeper.Credential(zktest.Mine)
	theirs   = zookeeper.Credential(zktest.Theirs)
	stranger = zktest.Stranger[zookeeper.Credential]
	tree     = zktest.Tree
)

type (
	journal         = zktest.Journal
	recorder[T any] = zktest.Recorder[T]
)

func killSession(t testing.TB, c *zookeeper.Client, p *testserver.Proxy) {
	t.Helper()
	zktest.KillSession(t, sessionOf(c).Session, p)
}

func taken(t testing.TB, c *zookeeper.Client, id driver.KeyID) *zookeeper.Lease {
	t.Helper()
	var lease driver.Lease
	until(t, "lock taken", func() bool {
		var err error
		lease, err = c.Locker().TryAcquire(bounded(t), request(id))
		return err == nil
	})
	return lease.(*zookeeper.Lease)
}

// rig is the shared rig, with the checks for leases of recipes.
type rig struct{ *recipetest.Rig }

func newRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	return &rig{recipetest.NewRig(t, timeout)}
}

func (r *rig) wantHeld(l *Lease) {
	r.Helper()
	r.WantHeld(l.held, func(czxid int64) driver.Fence { return l.place.Fence(l.held.Table(), czxid) })
}

// wantLost checks that a lease has ended and says so.
func (r *rig) wantLost(l driver.Lease) {
	r.Helper()
	await(r, "Done()", l.Done())
	if err := l.Err(); err == nil {
		r.Error("Err() = <nil>, want the loss")
	}
}

// pathOf is where a lease's znode is.
func pathOf(l driver.Lease) string {
	path, _ := l.(*Lease).held.Where()
	return path
}

// lockPath is where the lock of a key is.
func lockPath(c *zookeeper.Client, id driver.KeyID) string {
	hex := id.String()
	return clientOf(c).Chroot + "/lock/" + hex[:3] + "/" + hex[3:]
}

// straight is the configuration without the proxy.
func (r *rig) straight() zookeeper.Config {
	cfg := r.Config
	cfg.Servers, cfg.SessionTimeout = testserver.SharedZooKeeper(r), 60*time.Second
	return cfg
}
