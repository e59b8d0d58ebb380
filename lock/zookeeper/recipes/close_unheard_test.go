package recipes

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A lock is held, nothing is under way, and the servers are not heard of: Close
// cannot know that they give the lock back, and says so, although its context
// lets it wait for much longer.
func TestCloseUnheardWithALock(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]testserver.Direction{
		"requests": testserver.ToServer,
		"replies":  testserver.ToClient,
		"both":     testserver.Both,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			id := newID()
			lease := taken(t, r.Client, id)
			place, err := MustNewMutex(r.Client, "/m").Acquire(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			recipetest.Idle(r, r.Client)
			r.Proxy.BlackHole(lost)
			err = r.Client.Close(bounded(t))
			if err == nil || !strings.Contains(err.Error(), "2 locks") {
				t.Errorf("Close() = %v, want an error that speaks of 2 locks", err)
			}
			r.wantLost(lease)
			r.wantLost(place)
			if lost&testserver.ToServer == 0 {
				return // they have heard of it
			}
			if there, _, err := r.Raw.Exists(lockPath(r.Client, id)); err != nil || !there {
				t.Error("the lock is gone, though nobody can have given it back")
			}
			if _, err := r.Other.Locker().TryAcquire(bounded(t), request(id)); !errors.Is(err, driver.ErrLocked) {
				t.Errorf("TryAcquire() by another = %v, want %v", err, driver.ErrLocked)
			}
		})
	}
}

// Without a lock there is nothing to tell: the session ends by itself.
func TestCloseUnheardWithoutALock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	recipetest.Idle(r, r.Client)
	r.Proxy.BlackHole(testserver.Both)
	if err := r.Client.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v, want <nil>", err)
	}
}
