package recipes

import (
	"context"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// semModel is a semaphore with so many permits. Its operations are numbers: of
// permits taken, or, below zero, given back.
func semModel(permits int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return permits },
		Step: func(state, input, _ any) (bool, any) {
			left := state.(int) - input.(int)
			return left >= 0 && left <= permits, left
		},
	}
}

// Callers take one to three permits, give up, and lose their sessions.
func TestSemaphoreHistory(t *testing.T) {
	t.Parallel()
	const permits = 4
	r, h := newRig(t, 0), newHistory()
	befall(r, h, 9, 12, 3, 4, func(p *chance, c *zookeeper.Client) {
		sem, n := MustNewSemaphore(c, linePath, permits), 1+p.rng.IntN(3)
		f := func(ctx context.Context) (*Lease, error) { return sem.Acquire(ctx, n) }
		if p.rng.IntN(4) == 0 {
			f = func(ctx context.Context) (*Lease, error) { return sem.TryAcquire(ctx, n) }
		}
		l, since := p.take(f, n)
		if l == nil {
			return
		}
		p.strike()
		p.drop(l, since, -n)
	})
	h.want(t, semModel(permits))
}
