package zookeeper

import (
	"errors"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Writes that share a Multi get each their own result, whatever the others'.
func TestBatchedWritesAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	const n = 200
	ids := make([]driver.KeyID, n)
	for i := range ids {
		ids[i] = newID()
	}
	held := map[driver.KeyID]bool{}
	for i := 0; i < n; i += 7 {
		if _, err := c[1].Locker().TryAcquire(bounded(t), request(ids[i])); err != nil {
			t.Fatal(err)
		}
		held[ids[i]] = true
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			lease, err := c[0].Locker().TryAcquire(bounded(t), request(id))
			if held[id] {
				if !errors.Is(err, driver.ErrLocked) {
					t.Errorf("TryAcquire() of a held lock = %v, want ErrLocked", err)
				}
				return
			}
			if err != nil {
				t.Errorf("TryAcquire() of a free lock = %v", err)
				return
			}
			if _, err := lease.Check(bounded(t)); err != nil {
				t.Errorf("Check() = %v", err)
			}
		})
	}
	wg.Wait()
}

// A reply that is lost leaves all writes of the Multi in doubt; each settles for
// itself.
func TestBatchWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 20*time.Second)
	var wg sync.WaitGroup
	for range 5 {
		r.proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.Root+"/")))
		for range 40 {
			wg.Go(func() {
				lease, err := r.l.TryAcquire(bounded(t), request(newID()))
				if err != nil && !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("TryAcquire() = %v", err)
				}
				if err != nil {
					return
				}
				if _, err := lease.Check(bounded(t)); err != nil {
					t.Errorf("Check() = %v", err)
				}
				if err := lease.Release(bounded(t)); err != nil {
					t.Errorf("Release() = %v", err)
				}
			})
		}
		wg.Wait()
		r.idle(r.c)
	}
	shards, _, err := r.raw.Children(r.cfg.Chroot + r.cfg.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range shards {
		if left, _, err := r.raw.Children(r.cfg.Chroot + r.cfg.Root + "/" + shard); err != nil || len(left) > 0 {
			t.Errorf("locks left below %s: %v, %v", shard, left, err)
		}
	}
}

// A release in the background waits a moment for the next write. A lone caller that takes one lock
// after the other then needs one transaction for each.
func TestReleaseSharesTheTransactionOfTheNextLock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for range 30 { // on a busy machine the next lock may come too late
		first := r.take(r.l)
		first.ReleaseInBackground()
		if _, _, err := r.raw.Exists(r.path); err != nil { // a release that does not wait is sent meanwhile
			t.Fatal(err)
		}
		second, err := r.l.TryAcquire(bounded(t), request(newID()))
		if err != nil {
			t.Fatal(err)
		}
		<-first.held.Gone()
		_, parent, err := r.raw.Get(path.Dir(r.path))
		if err != nil {
			t.Fatal(err)
		}
		r.release(second.(*Lease))
		if deleted := uint64(parent.Pzxid); deleted == second.Fence().Token {
			return
		}
	}
	t.Error("no release shared the transaction of the next lock")
}
