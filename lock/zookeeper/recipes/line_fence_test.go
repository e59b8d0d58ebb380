package recipes

import (
	"slices"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Places of one client that were asked for at the same moment have different fences,
// which grow in the order in which they get the lock. Participants shows the same
// fences. This also holds where replies to the creates were lost.
func TestFencesGrowAlongALine(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"answered": false, "reply lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
			cfg.Servers = []string{proxy.Addr()}
			c := open(t, cfg)
			m := MustNewMutex(c, "/m")
			head, err := m.Acquire(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			creates := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(cfg.Chroot+"/m/lock-"))
			const n = 20
			var leases []*Lease
			var mu sync.Mutex
			var wg sync.WaitGroup
			// While one Multi waits for its answer, the other places wait to be sent.
			first := proxy.HoldNext(creates)
			for range n {
				wg.Go(func() {
					l, err := m.Acquire(bounded(t))
					if err != nil {
						t.Errorf("Acquire() = %v", err)
						return
					}
					mu.Lock()
					leases = append(leases, l)
					mu.Unlock()
					if err := l.Release(bounded(t)); err != nil {
						t.Errorf("Release() = %v", err)
					}
				})
			}
			await(t, "the first create", first.Held())
			if lost {
				proxy.DropNextReply(creates)
			}
			first.Release()
			until(t, "all in line", func() bool { return len(participants(t, m)) == n+1 })

			var shown []driver.Fence
			for _, p := range participants(t, m) {
				shown = append(shown, p.Fence)
			}
			head.ReleaseInBackground()
			wg.Wait()
			var had []driver.Fence
			for _, l := range append([]*Lease{head}, leases...) {
				had = append(had, l.Fence())
			}
			slices.SortFunc(had, func(a, b driver.Fence) int { return int(int64(a.Token) - int64(b.Token)) })
			if !slices.Equal(shown, had) {
				t.Errorf("Participants() shows the fences\n%v, the leases had\n%v", shown, had)
			}
			for i := range had[1:] {
				if !had[i].Before(had[i+1]) {
					t.Errorf("fence %v was followed by %v", had[i], had[i+1])
				}
			}
		})
	}
}
