package recipes

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Revoked returns a channel that is closed when the holder is asked to let go, see
// [Mutex.Revoke]. The holder may ignore the request and keep the lock undisturbed. The end of
// the lease does not close the channel, so wait for Done as well.
//
// The first call makes the holder watch its own znode, which costs a read. It also notices an
// earlier request.
//
// The idea comes from the revocable locks of Apache Curator's InterProcessMutex.
func (l *Lease) Revoked() <-chan struct{} {
	l.attend()
	return l.place.wish()
}

// wish is the channel of Revoked.
func (p *place) wish() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked == nil {
		p.revoked = make(chan struct{})
	}
	return p.revoked
}

// askedFor notes a request to let go.
func (p *place) askedFor() {
	ch := p.wish()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked {
		p.asked = true
		close(ch)
	}
}

// attend makes the holder watch its own znode from now on, for requests to let go and for its
// end.
func (l *Lease) attend() {
	l.place.mu.Lock()
	defer l.place.mu.Unlock()
	if !l.place.attended {
		l.place.attended = true
		l.held.Table().Session.Status.Go(l.watchOwn)
	}
}

func (l *Lease) watchOwn() {
	t, path := l.held.Table(), l.place.path()
	for {
		w := t.Session.Watches.Of(path, session.OnNode, nil)
		select {
		case <-w.Armed():
		case <-l.Done():
			return
		}
		n, err := t.Session.Reads.Decide(path, session.OfNode) // at least as new as the watch
		switch {
		case err != nil || l.held.Over() != nil:
			return
		case !l.held.Is(n):
			_ = l.held.Lose()
			return
		case revoked(n.Node):
			l.place.askedFor()
		}
		select {
		case <-w.Woken():
		case <-l.Done():
			return
		}
	}
}

// Revoke asks the holder of the lock to let go, which closes its [Lease.Revoked]. The holder
// decides whether and when it does. A free lock is no error. If the holder leaves after it was
// asked, the next holder is not asked. If the holder leaves before the request comes, the next
// holder is asked.
//
// The error wraps driver.ErrUnavailable. The request may have been made all the same.
func (m *Mutex) Revoke(ctx context.Context) error { return m.ln.revoke(ctx) }

func (ln *lineup) revoke(ctx context.Context) error {
	for {
		t, all, err := ln.roll(ctx)
		if err != nil || len(all) == 0 {
			return err
		}
		asked, err := askToLetGo(ctx, t, ln.path+"/"+all[0].Name)
		if err != nil {
			return fmt.Errorf("%w: revoke %s: %w", driver.ErrUnavailable, ln.name, err)
		}
		if asked {
			return nil
		}
	}
}

// askToLetGo asks the holder at a place. It returns false if the place has gone without a
// request. Names of places are never used again, so the request cannot reach another holder.
//
// The request writes the same data again and so increments the version. No other write ever
// changes a place.
func askToLetGo(ctx context.Context, t *held.Table, path string) (asked bool, err error) {
	n, err := t.Session.Reads.DecideFor(ctx, path, session.OfNode)
	if err != nil || !n.Exists || revoked(n.Node) {
		return n.Exists, err
	}
	r := once.Write(ctx, t, nil, &zk.SetDataRequest{Path: path, Data: n.Data, Version: unrevoked})
	switch {
	case r.Outcome == session.Applied, r.RefusedBy(zk.ErrBadVersion):
		return true, nil
	case r.RefusedBy(zk.ErrNoNode):
		return false, nil
	}
	return false, r.Err
}

// revoked reports whether the holder at a place was asked to let go.
func revoked(place session.Node) bool { return place.Version != unrevoked }
