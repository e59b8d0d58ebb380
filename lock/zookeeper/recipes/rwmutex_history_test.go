package recipes

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// chance is what befalls the callers of a history.
type chance struct {
	*rig
	h       *history
	rng     *rand.Rand
	who     int
	kills   *atomic.Int64 // left to be done
	cuts    *atomic.Int64
	granted *atomic.Int64
}

// befall has callers, a third of whom use the client behind the proxy, do a step
// again and again.
func befall(r *rig, h *history, callers, rounds int, kills, cuts int64, step func(p *chance, c *zookeeper.Client)) {
	r.Helper()
	clients := []*zookeeper.Client{r.Client, r.Other, open(r, r.straight())}
	var left, leftCuts, granted atomic.Int64
	left.Store(kills)
	leftCuts.Store(cuts)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			p := &chance{rig: r, h: h, rng: rand.New(rand.NewPCG(uint64(i), 11)), who: i, kills: &left, cuts: &leftCuts, granted: &granted}
			for range rounds {
				step(p, clients[i%len(clients)])
			}
		})
	}
	wg.Wait()
	r.wantClean(clients...)
	if granted.Load() == 0 {
		r.Error("nothing was granted")
	}
}

// patience is a context that ends soon, now and then.
func (p *chance) patience() (context.Context, context.CancelFunc) {
	if p.rng.IntN(4) == 0 {
		return context.WithTimeout(bounded(p), time.Duration(p.rng.IntN(30))*time.Millisecond)
	}
	return context.WithCancel(bounded(p))
}

// strike kills the session behind the proxy, or cuts its connection, now and
// then.
func (p *chance) strike() {
	switch {
	case p.rng.IntN(12) == 0 && p.kills.Add(-1) >= 0:
		p.kill()
	case p.rng.IntN(12) == 0 && p.cuts.Add(-1) >= 0:
		p.Proxy.Cut()
	}
}

// take asks for a lock and notes it if it is granted. since is when it asked.
func (p *chance) take(f ask, op any) (l *Lease, since int64) {
	ctx, cancel := p.patience()
	defer cancel()
	since = p.h.now()
	l, err := f(ctx)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost) {
			p.Errorf("acquire = %v", err)
		}
		return nil, since
	}
	p.h.add(p.who, since, op, nil)
	p.granted.Add(1)
	return l, since
}

// drop gives a lock back and notes it. Where the session is over the lock had
// gone with that, which may be any time since it was asked for: whoever kills a
// session does not tell its holder first.
func (p *chance) drop(l *Lease, since int64, op any) {
	call := p.h.now()
	if p.rng.IntN(3) == 0 {
		l.ReleaseInBackground()
	}
	if err := l.Release(bounded(p)); err != nil {
		p.Errorf("Release() = %v", err)
	}
	if l.held.Table().Session.Status.Err() != nil {
		call = since
	}
	p.h.add(p.who, call, op, nil)
}

// Readers and writers come, go, downgrade, give up, and lose their sessions.
func TestRWMutexHistory(t *testing.T) {
	t.Parallel()
	r, h := newRig(t, 0), newHistory()
	befall(r, h, 9, 12, 3, 4, func(p *chance, c *zookeeper.Client) {
		m := MustNewRWMutex(c, linePath)
		kind := p.rng.IntN(6)
		f, take, drop := ask(m.AcquireRead), takeRead, dropRead
		switch kind {
		case 0:
			f = m.TryAcquireRead
		case 1:
			f, take, drop = m.TryAcquireWrite, takeWrite, dropWrite
		case 2, 3:
			f, take, drop = m.AcquireWrite, takeWrite, dropWrite
		}
		l, since := p.take(f, take)
		if l == nil {
			return
		}
		p.strike()
		if take == takeWrite && p.rng.IntN(2) == 0 {
			call := h.now()
			ctx, cancel := p.patience()
			defer cancel()
			read, err := m.Downgrade(ctx, l)
			if err != nil {
				// It has neither any more: it may have had the read lock for a moment.
				await(t, "old lock gone", l.held.Gone())
				if l.held.Table().Session.Status.Err() != nil {
					call = since
				}
				h.add(p.who, call, drop, nil)
				return
			}
			h.add(p.who, call, writeToRead, nil)
			l, drop = read, dropRead
			p.strike()
		}
		p.drop(l, since, drop)
	})
	h.want(t, rwModel)
}

// What the lock guards is read and written as if it were atomic. (No session is
// killed here: its holder would go on for a moment, and only a register that
// checks fences could refuse it.)
func TestRWMutexGuardsARegister(t *testing.T) {
	t.Parallel()
	r, h := newRig(t, 0), newHistory()
	var high, low, writes atomic.Int64
	value := func() int64 { return high.Load()<<32 | low.Load() }
	read := func(p *chance) {
		call := h.now()
		v := value()
		h.add(p.who, call, registerOp{}, v)
	}
	befall(r, h, 9, 12, 0, 4, func(p *chance, c *zookeeper.Client) {
		m := MustNewRWMutex(c, linePath)
		write := p.rng.IntN(2) == 0
		f := ask(m.AcquireRead)
		if write {
			f = m.AcquireWrite
		}
		ctx, cancel := p.patience()
		defer cancel()
		l, err := f(ctx)
		if err != nil {
			return
		}
		p.granted.Add(1)
		p.strike()
		if write {
			n := writes.Add(1)
			call := h.now()
			high.Store(n)
			_, _ = l.Check(bounded(p)) // so that it takes a while
			low.Store(n)
			h.add(p.who, call, registerOp{true, n<<32 | n}, nil)
			if p.rng.IntN(2) == 0 {
				if l, err = m.Downgrade(bounded(p), l); err != nil {
					p.Errorf("Downgrade() = %v", err)
					return
				}
			}
		}
		read(p)
		if err := l.Release(bounded(p)); err != nil {
			p.Errorf("Release() = %v", err)
		}
	})
	h.want(t, registerModel)
}
