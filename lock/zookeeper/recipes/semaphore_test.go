package recipes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

func TestSemaphoreRule(t *testing.T) {
	t.Parallel()
	sem := &Semaphore{permits: 3}
	for _, tt := range []struct {
		roles []string // the last one is the place that is asked about
		turn  bool
	}{
		{[]string{"permits3"}, true},
		{[]string{"permits1", "permits2"}, true},
		{[]string{"permits1", "permits1", "permits1"}, true},
		{[]string{"permits1", "permits1", "permits1", "permits1"}, false},
		{[]string{"permits1", "permits3"}, false},
		{[]string{"permits1", "permits3", "permits1"}, false}, // though there is one free
		{[]string{"permits4"}, false},
		{[]string{"permits9223372036854775807", "permits9223372036854775807"}, false},
		{[]string{"write", "permits1"}, false}, // somebody else's place
		{[]string{"permits-1", "permits1"}, false},
		{[]string{"permits0", "permits1"}, false},
		{[]string{"1", "permits1"}, false},
	} {
		line := make([]line.Position, len(tt.roles))
		for i, role := range tt.roles {
			line[i].Role = role
		}
		turn, behind := sem.enough(line, len(line)-1)
		if turn != tt.turn || !turn && behind != anyChange {
			t.Errorf("enough(%v) = %v, %d; want %v", tt.roles, turn, behind, tt.turn)
		}
	}
}

// A big request is not overtaken by the small ones behind it.
func TestSemaphoreWeights(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	one := r.queue(bounded(t), semAsk(r.Client, 3, 1)).granted()
	two := r.queue(bounded(t), semAsk(r.Other, 3, 2)).granted()
	big := r.queue(bounded(t), semAsk(r.Client, 3, 3))
	small := r.queue(bounded(t), semAsk(r.Other, 3, 1))
	recipetest.Release(r, two)
	if l, err := MustNewSemaphore(r.Client, linePath, 3).TryAcquire(bounded(t), 1); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() past those who wait = %v, %v; want ErrLocked", l, err)
	}
	big.wantWaiting()
	small.wantWaiting()
	recipetest.Release(r, one)
	l := big.granted()
	small.wantWaiting()
	recipetest.Release(r, l)
	l = small.granted()
	two, err := MustNewSemaphore(r.Client, linePath, 3).TryAcquire(bounded(t), 2)
	if err != nil {
		t.Fatalf("TryAcquire() of what is free = %v", err)
	}
	if !l.Fence().Before(two.Fence()) {
		t.Errorf("fence %v after %v", two.Fence(), l.Fence())
	}
	recipetest.Release(r, two)
	recipetest.Release(r, l)
	r.wantClean(r.Client, r.Other)
}

func TestSemaphoreRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for _, tt := range []struct{ permits, n int }{{3, 0}, {3, -1}, {3, 4}} {
		sem := MustNewSemaphore(r.Client, linePath, tt.permits)
		for name, f := range map[string]func(context.Context, int) (*Lease, error){"Acquire": sem.Acquire, "TryAcquire": sem.TryAcquire} {
			l, err := f(bounded(t), tt.n)
			if l != nil || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d permits", tt.n)) {
				t.Errorf("%s(%d) of %d = %v, %v; want an error that says so", name, tt.n, tt.permits, l, err)
			}
		}
	}
	if ok, _, _ := r.Raw.Exists(r.Config.Chroot + linePath); ok {
		t.Error("the path was made")
	}
}

// The waiters of a process look once for all of them when the line changes.
func TestSemaphoreWaitersShareALook(t *testing.T) {
	t.Parallel()
	const waiters, changes = 10, 15
	r := newRig(t, 0)
	var looks atomic.Int64
	list := testserver.All(testserver.Op(testserver.OpGetChildren, testserver.OpGetChildren2), testserver.Contains(r.Config.Chroot+linePath))
	r.Proxy.DropNextRequest(func(req testserver.Request) bool {
		if list(req) {
			looks.Add(1)
		}
		return false
	})
	s := sessionOf(r.Client)
	// seen says that the watch there is has seen so many in line.
	seen := func(n int) {
		t.Helper()
		until(t, "line seen", func() bool {
			w := s.Session.Watches.Watched()[session.WatchKey{Path: r.Config.Chroot + linePath, Kind: session.OnChildren}]
			if w == nil {
				return false
			}
			<-w.Armed()
			return len(line.Sort(namesOf(w))) == n
		})
	}
	held := r.queue(bounded(t), semAsk(r.Other, 1, 1)).granted()
	var line []*caller
	for range waiters {
		line = append(line, r.queue(bounded(t), semAsk(r.Client, 1, 1)))
	}
	seen(1 + waiters)
	for range changes {
		ctx, cancel := context.WithCancel(bounded(t))
		c := r.queue(ctx, semAsk(r.Other, 1, 1))
		seen(2 + waiters)
		cancel()
		<-c.answered
		seen(1 + waiters)
	}
	// One look by each at its arrival, one for all at each change; and a waiter
	// that meets a watch older than its place looks again.
	n, most := looks.Load(), int64(waiters+waiters+waiters+2*changes+1)
	if n > most {
		t.Errorf("%d looks at the line, want %d at most", n, most)
	}
	t.Logf("%d looks", n)
	recipetest.Release(r, held)
	for _, c := range line {
		recipetest.Release(r, c.granted())
	}
	r.wantClean(r.Client, r.Other)
}
