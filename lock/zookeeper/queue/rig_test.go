package queue

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

var (
	clientOf     = recipetest.ClientOf
	crowd        = recipetest.Crowd
	open         = recipetest.Open
	sessionOf    = recipetest.SessionOf
	sharedConfig = recipetest.SharedConfig

	await    = zktest.Await
	bounded  = zktest.Bounded
	create   = zktest.Create
	password = zktest.Password
	rawConn  = zktest.RawConn
	until    = zktest.Until
)

// watches reports whether a client watches the children of a znode.
func watches(c *zookeeper.Client, path string) bool {
	return sessionOf(c).Session.Watches.Watched()[session.WatchKey{Path: path, Kind: session.OnChildren}] != nil
}

// rig is the shared rig, with the check for locks of elements.
type rig struct{ *recipetest.Rig }

func newRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	return &rig{recipetest.NewRig(t, timeout)}
}

func (r *rig) wantHeld(d *Delivery) {
	r.Helper()
	r.WantHeld(d.held, d.held.Table().Fence)
}
