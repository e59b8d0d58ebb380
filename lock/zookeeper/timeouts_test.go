package zookeeper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// After a reconnect the leader counts with another time-out than before, so a session that trusts by either of
// the two may have ended already. Servers differ while their maxSessionTimeout is being changed.
func TestServersThatGrantDifferentTimeouts(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{"shorter": "maxSessionTimeout=3000", "longer": "minSessionTimeout=8000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.StartZooKeeper(t)
			c := open(t, config(t, server.Hosts()...))
			lease := taken(t, c, newID())
			server.Kill()
			file := filepath.Join(filepath.Dir(server.Data()), "zoo.cfg")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, append(text, limit+"\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
			server.Restart()
			await(t, "the lease is lost", lease.Done())
			if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("Err() = %v, want %v", err, driver.ErrLeaseLost)
			}
			taken(t, c, newID()) // in a session of the new time-out
		})
	}
}

// A lock that may not be read for a while is removed when it may be read again. It is not read all the
// time until then.
func TestLockThatMayNotBeReadIsRemovedLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	r.age()
	if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	requests := r.proxy.Count(r.path)
	lease.ReleaseInBackground()
	tries := func(n int) time.Time {
		until(t, "a try", func() bool { return requests.Seen().Requests[testserver.OpGetData] >= n })
		return time.Now()
	}
	if first, second := tries(1), tries(2); second.Sub(first) < time.Second/2 {
		t.Errorf("the second try came %v after the first one, want about a second", second.Sub(first))
	}
	if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	until(t, "another client has the lock", func() bool {
		_, err := r.other.TryAcquire(bounded(t), request(r.id))
		return err == nil
	})
}
