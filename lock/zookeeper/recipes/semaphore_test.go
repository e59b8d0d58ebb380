package recipes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
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
