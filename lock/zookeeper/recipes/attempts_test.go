package recipes

import (
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A waiter that has lost its place takes another one, as often as its client's policy permits.
func TestAttemptsOfAWaiter(t *testing.T) {
	t.Parallel()
	for attempts, again := range map[int]bool{1: false, 2: true} {
		r := newRig(t, 0)
		cfg := r.Config
		cfg.Retry = zookeeper.RetryPolicy{First: time.Millisecond, Max: time.Millisecond, Attempts: attempts}
		c := open(t, cfg)
		r.call(bounded(t), MustNewMutex(r.Other, linePath).Acquire).granted()
		waiter := r.queue(bounded(t), MustNewMutex(c, linePath).Acquire)
		r.watching(c)
		r.removeLine()
		if again {
			recipetest.Release(r, waiter.granted())
			continue
		}
		await(t, "answer", waiter.answered)
		if waiter.lease != nil || !errors.Is(waiter.err, driver.ErrUnavailable) || !errors.Is(waiter.err, driver.ErrLeaseLost) {
			t.Errorf("Acquire() with one attempt = %v, %v, want %v", waiter.lease, waiter.err, driver.ErrLeaseLost)
		}
	}
}
