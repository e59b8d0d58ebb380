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
	wantSwept := func() {
		t.Helper()
		if _, _, err := queue.MustNew(clients[0], "/app/queue").Poll(bounded(t)); err != nil {
			t.Errorf("Poll() = %v", err)
		}
		for _, f := range everyAsk(clients[0])[1:] {
			until(t, f.path+" swept", func() bool {
				ok, _, err := raw.Exists(cfg.Chroot + f.path)
				return err == nil && !ok
			})
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
		w := &load{history: newHistory(), t: t, name: f.name}
		for who, c := range clients {
			wg.Go(func() {
				for range 30 {
					w.use(bounded(t), c, who, everyAsk(c)[i].ask, takeWrite, dropWrite, true)
				}
			})
		}
		defer func() {
			if n := w.done.Load(); n != 60 {
				t.Errorf("%s was had %d times, want 60", w.name, n)
			}
			w.want(t, rwModel)
		}()
	}
	wg.Wait()
	wantSwept()
}
