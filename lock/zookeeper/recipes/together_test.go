package recipes

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Callers of one client who ask at the same moment take places in one transaction. Their
// fences differ, and are in the order of their turns, even if the reply is lost.
func TestMutexPlacesOfOneTransactionHaveTheirOwnFences(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"answered": false, "reply lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			m := MustNewMutex(r.Client, "/m")
			before, err := m.Acquire(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			until(t, "places of one transaction", func() bool {
				places := takeTogether(r, m, lost)
				defer func() {
					for _, l := range places {
						l.ReleaseInBackground()
					}
				}()
				shared := 0
				for i, l := range places {
					r.wantHeld(l)
					if i == 0 {
						continue
					}
					if f, g := places[i-1].Fence(), l.Fence(); !f.Before(g) {
						t.Errorf("the fences of places side by side are %v and %v, want them to grow", f, g)
					}
					_, a := places[i-1].held.Where()
					if _, b := l.held.Where(); a == b {
						shared++
					}
				}
				return shared > 0
			})
			before.ReleaseInBackground()
		})
	}
}

// takeTogether has several callers ask for a place while the session's writes are held up,
// and returns the places in their order.
func takeTogether(r *rig, m *Mutex, lost bool) []*Lease {
	r.Helper()
	tab := sessionOf(r.Client)
	var wg sync.WaitGroup
	var stops []*testserver.Hold
	for i := range 2 { // as many Multis may be under way
		path := fmt.Sprintf("%s/stop%d-%s", r.Config.Chroot, i, tab.Client.Try())
		hold := r.Proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(path)))
		stops = append(stops, hold)
		wg.Go(func() { tab.Session.Writes.Do(tab.Client.Persistent(path, nil)) })
		await(r, "a write under way", hold.Held())
	}
	const callers = 4
	places := make([]*Lease, callers)
	for i := range callers {
		wg.Go(func() {
			l, err := m.ln.enqueue(bounded(r), tab, exclusive, nil)
			if err != nil {
				r.Errorf("enqueue() = %v", err)
				return
			}
			places[i] = l
		})
	}
	until(r, "callers", func() bool { return len(tab.Unsettled()) == callers })
	if lost {
		r.Proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(m.ln.path+"/")))
	}
	for _, hold := range stops {
		hold.Release()
	}
	wg.Wait()
	if slices.Contains(places, nil) {
		r.FailNow()
	}
	slices.SortFunc(places, func(a, b *Lease) int { return cmp.Compare(a.place.Seq, b.place.Seq) })
	return places
}
