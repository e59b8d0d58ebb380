package recipes

import (
	"slices"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// The servers sweep the parents that nobody uses, here all the time. They go,
// they come again, and whoever is about to use one does not notice.
func TestMatrixContainersAreSwept(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t, testserver.WithJVMArgs("-Dznode.container.checkIntervalMs=20"))
	cfg := config(t, z.Hosts()...)
	clients := []*zookeeper.Client{open(t, cfg), open(t, cfg)}
	raw := rawConn(t, z.Hosts())
	there := func(path string) bool {
		ok, _, err := raw.Exists(cfg.Chroot + path)
		return ok || err != nil
	}
	wantSwept := func() {
		t.Helper()
		if _, _, err := queue.MustNew(clients[0], "/app/queue").Poll(bounded(t)); err != nil {
			t.Errorf("Poll() = %v", err)
		}
		for _, f := range everyAsk(clients[0])[1:] {
			until(t, f.path+" swept", func() bool { return !there(f.path) })
		}
	}
	for _, c := range slices.Concat(clients, clients) {
		var held []driver.Lease
		for _, f := range everyAsk(c) {
			l, err := f.ask(bounded(t))
			if err != nil {
				t.Fatalf("%s = %v", f.name, err)
			}
			held = append(held, l)
		}
		wantHeldStill(t, held)
		releaseAll(t, held)
		wantSwept()
	}
	var wg sync.WaitGroup
	for i, f := range everyAsk(clients[0]) {
		if f.name == "delivery" {
			continue // both would find the queue empty and offer an element
		}
		for _, c := range clients {
			wg.Go(func() {
				for range 8 {
					l, err := everyAsk(c)[i].ask(bounded(t))
					if err != nil {
						t.Errorf("%s = %v", f.name, err)
						return
					}
					releaseAll(t, []driver.Lease{l})
				}
			})
		}
	}
	wg.Wait()
	wantSwept()
	// The parents of a line go too, to the last of them, but not from under another line.
	deep, err := MustNewMutex(clients[0], "/orders/17/items/4/lock").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	beside, err := MustNewSemaphore(clients[0], "/orders/18/seats", 2).Acquire(bounded(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	releaseAll(t, []*Lease{beside})
	until(t, "parent of one swept", func() bool { return !there("/orders/18") })
	wantHeldStill(t, []*Lease{deep})
	releaseAll(t, []*Lease{deep})
	until(t, "parents swept", func() bool { return !there("/orders") })
}
