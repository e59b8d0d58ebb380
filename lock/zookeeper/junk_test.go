package zookeeper

import (
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Keys that are used once leave nothing but the parents of locks, of which there are 4,096 at
// most. The locks of a session have a limit, above which a client is refused.
func TestJunkKeysLeaveNoZnodes(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.MaxLocksPerSession = 50
	c := open(t, cfg)
	conn := connOf(t, sessionOf(c))
	const junk = 300
	for range junk / cfg.MaxLocksPerSession {
		var wg sync.WaitGroup
		for range cfg.MaxLocksPerSession {
			wg.Go(func() {
				l, err := c.Locker().TryAcquire(bounded(t), driver.LockRequest{KeyID: newID(), Nonce: driver.NewNonce()})
				if err != nil {
					t.Errorf("TryAcquire() = %v", err)
					return
				}
				if err := l.Release(bounded(t)); err != nil {
					t.Errorf("Release() = %v", err)
				}
			})
		}
		wg.Wait()
	}
	parents, _, err := conn.Children(c.cfg.rootPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parents {
		locks, _, err := conn.Children(c.cfg.rootPath() + "/" + p)
		if err != nil {
			t.Fatal(err)
		}
		if len(locks) > 0 || p != "home" && len(p) != 3 {
			t.Errorf("%s/%s holds %q after its locks were given back", c.cfg.rootPath(), p, locks)
		}
	}
	if len(parents) < 2 || len(parents) > junk+1 {
		t.Errorf("%d parents after %d keys: the look is broken", len(parents), junk)
	}
	for i := range cfg.MaxLocksPerSession + 1 {
		_, err := c.Locker().TryAcquire(bounded(t), driver.LockRequest{KeyID: newID(), Nonce: driver.NewNonce()})
		if wanted := i < cfg.MaxLocksPerSession; (err == nil) != wanted {
			t.Fatalf("lock %d of %d: %v", i+1, cfg.MaxLocksPerSession, err)
		}
	}
}
