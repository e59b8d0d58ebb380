package recipes

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// wantMismatch says that a semaphore is refused, and that nobody notices.
func (r *rig) wantMismatch(c *zookeeper.Client, permits int, words ...string) {
	r.Helper()
	n := len(r.places())
	for name, f := range map[string]ask{
		"Acquire": semAsk(c, permits, 1),
		"TryAcquire": func(ctx context.Context) (*Lease, error) {
			return MustNewSemaphore(c, linePath, permits).TryAcquire(ctx, 1)
		},
	} {
		l, err := f(bounded(r))
		if l != nil || !errors.Is(err, ErrPermitsMismatch) {
			r.Errorf("%s() = %v, %v; want %v", name, l, err, ErrPermitsMismatch)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				r.Errorf("%s() = %v, want it to say %q", name, err, w)
			}
		}
		r.awaitPlaces(n)
	}
}

func TestSemaphoreInconsistentPermits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	held := r.queue(bounded(t), semAsk(r.Client, 5, 4)).granted()
	r.wantMismatch(r.Other, 3, "has 3", "has 5")
	r.wantMismatch(r.Client, 6, "has 6", "has 5")
	recipetest.Release(r, r.queue(bounded(t), semAsk(r.Other, 5, 1)).granted())
	recipetest.Release(r, held)
	recipetest.Idle(r, r.Client)
	// Nobody else being in line, and the path having been made for it, that went
	// with the place, and with it the number.
	until(t, "path gone", func() bool {
		ok, stat, err := r.Raw.Exists(r.Config.Chroot + linePath)
		if ok && stat.NumChildren == 0 { // kept, as it was used by two
			err = r.Raw.Delete(r.Config.Chroot+linePath, -1)
		}
		return !ok && err == nil
	})
	recipetest.Release(r, r.queue(bounded(t), semAsk(r.Other, 3, 3)).granted())
	r.wantClean(r.Client, r.Other)
}

// Many meet at a path that is not there, or has no data, and want two numbers:
// one of them wins, and all who want it have it.
func TestSemaphorePermitsAreAgreedAtOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"missing", "made by hand"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			if name == "made by hand" {
				create(t, r.Raw, r.Config.Chroot+linePath, zk.FlagPersistent)
			}
			const each = 6
			var mu sync.Mutex
			won := map[int]int{}
			var leases []*Lease
			var wg sync.WaitGroup
			for i := range 2 * each {
				permits, c := 10+i%2, []*zookeeper.Client{r.Client, r.Other}[i/2%2]
				wg.Go(func() {
					l, err := MustNewSemaphore(c, linePath, permits).Acquire(bounded(t), 1)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						won[permits]++
						leases = append(leases, l) // held, so that the path stays
					} else if !errors.Is(err, ErrPermitsMismatch) {
						t.Errorf("Acquire() = %v", err)
					}
				})
			}
			wg.Wait()
			if won[10]+won[11] != each || won[10] > 0 && won[11] > 0 {
				t.Errorf("got permits: %v, want all of one kind", won)
			}
			for _, l := range leases {
				recipetest.Release(r, l)
			}
			r.wantClean(r.Client, r.Other)
		})
	}
}

func TestSemaphoreParentWithForeignData(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"hello", `{"permits":0}`, `{}`, `7`} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			if _, err := r.Raw.Create(r.Config.Chroot+linePath, []byte(data), 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
			r.wantMismatch(r.Client, 3, "has 3", linePath, strconv.Quote(data))
			r.wantClean(r.Client)
		})
	}
}

// The path is removed and made anew with another number after a caller has seen
// its own there: the caller is not let in on what it saw.
func TestSemaphoreRemadeUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	seen := r.Proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(r.Config.Chroot+linePath)))
	c := r.call(bounded(t), semAsk(r.Client, 3, 1))
	await(t, "number of permits seen", seen.Held())
	r.removeLine()
	held := r.call(bounded(t), semAsk(r.Other, 5, 5)).granted()
	seen.Release()
	await(t, "answer", c.answered)
	if !errors.Is(c.err, ErrPermitsMismatch) {
		t.Errorf("Acquire() = %v, %v; want %v", c.lease, c.err, ErrPermitsMismatch)
	}
	if _, err := held.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v", err)
	}
	recipetest.Release(r, held)
	r.wantClean(r.Client, r.Other)
}

// The path goes before the caller has seen its number: it starts anew.
func TestSemaphorePathGoneBeforeItIsRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	read := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(r.Config.Chroot+linePath)))
	c := r.call(bounded(t), semAsk(r.Client, 3, 1))
	await(t, "held read", read.Held())
	r.removeLine()
	read.Release()
	recipetest.Release(r, c.granted())
	r.wantClean(r.Client)
}

// Two find no number, and the later to write it takes that of the earlier. A try does so as well.
func TestSemaphorePermitsWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	create(t, r.Raw, r.Config.Chroot+linePath, zk.FlagPersistent)
	late := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(`{"permits":3}`)))
	c := r.call(bounded(t), func(ctx context.Context) (*Lease, error) {
		return MustNewSemaphore(r.Client, linePath, 3).TryAcquire(ctx, 1)
	})
	await(t, "held write", late.Held())
	held := r.call(bounded(t), semAsk(r.Other, 5, 1)).granted()
	late.Release()
	await(t, "answer", c.answered)
	if !errors.Is(c.err, ErrPermitsMismatch) {
		t.Errorf("Acquire() = %v, %v; want %v", c.lease, c.err, ErrPermitsMismatch)
	}
	recipetest.Release(r, r.call(bounded(t), semAsk(r.Other, 5, 4)).granted())
	recipetest.Release(r, held)
	r.wantClean(r.Client, r.Other)
}

// A lost reply when the number is written, and one that says it is refused.
func TestSemaphoreLostPermits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	create(t, r.Raw, r.Config.Chroot+linePath, zk.FlagPersistent)
	lost := r.Proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(`{"permits":3}`)))
	l := r.queue(bounded(t), semAsk(r.Client, 3, 1)).granted()
	await(t, "the loss", lost)
	r.wantMismatch(r.Other, 4, "has 3", "has 4")
	recipetest.Release(r, l)
	r.wantClean(r.Client, r.Other)

	if _, err := r.Raw.Create(r.Config.Chroot+"/closed", nil, 0, zk.WorldACL(zk.PermAll&^zk.PermWrite)); err != nil {
		t.Fatal(err)
	}
	if l, err := MustNewSemaphore(r.Client, "/closed", 3).TryAcquire(bounded(t), 1); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("TryAcquire() = %v, %v; want %v", l, err, zk.ErrNoAuth)
	}
}
