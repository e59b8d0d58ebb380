// Package histories_test checks recorded histories of the recipes and of the queue. It is a module of its own, because the
// checker must not become a dependency of the library.
package histories_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

const patience = zktest.Patience

var (
	config    = recipetest.Config
	open      = recipetest.Open
	sessionOf = recipetest.SessionOf

	await    = zktest.Await
	bounded  = zktest.Bounded
	password = zktest.Password
	until    = zktest.Until
)

// still reports whether a client has the session that it had before, so that its locks went when it says so.
func still(c *zookeeper.Client, before *held.Table) bool {
	return before != nil && before == sessionOf(c) && before.Session.Status.Err() == nil
}

// rig is the shared rig, with a line.
type rig struct{ *recipetest.Rig }

func newRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	return &rig{recipetest.NewRig(t, timeout)}
}

const linePath = "/line"

// straight is the configuration without the proxy.
func (r *rig) straight() zookeeper.Config {
	cfg := r.Config
	cfg.Servers, cfg.SessionTimeout = testserver.SharedZooKeeper(r), 60*time.Second
	return cfg
}

// onLine matches the writes that name a place in the rig's line.
func (r *rig) onLine() testserver.Match {
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.Config.Chroot+linePath+"/"))
}

// kill ends the session of the client behind the proxy, from elsewhere.
func (r *rig) kill() {
	r.Helper()
	s := sessionOf(r.Client)
	if s == nil {
		return // it has not recovered from the last time
	}
	until(r, "session killed", func() bool {
		// The client may be back sooner than the killer has done its work.
		err := testserver.KillSession(testserver.SharedZooKeeper(r)[0], s.Session.Status.ID(), password(r.Proxy))
		return err == nil || s.Session.Status.Err() != nil
	})
}

// wantClean says that nothing is left in line, nor under way.
func (r *rig) wantClean(clients ...*zookeeper.Client) {
	r.Helper()
	until(r, "nobody is in line", func() bool {
		names, _, _ := r.Raw.Children(r.Config.Chroot + linePath) // no such znode: nobody
		return len(names) == 0
	})
	for _, c := range clients {
		recipetest.Idle(r, c)
	}
}
