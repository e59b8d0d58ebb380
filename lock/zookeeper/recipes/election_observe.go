package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Observe returns a channel with the leader in office, and then every new one:
// the zero Leader where nobody is. It goes on over reconnects and lost sessions.
// A reader that is slow gets the latest, and leaders who were in office only
// between two looks are left out; the last one never is. While there is no
// connection nothing is said: an observer cannot tell whether there is another
// leader, see [zookeeper.Client.Watch].
//
// The channel is closed when ctx ends or the client is closed, and at once where
// the path is not valid.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ln.c.Keeper.Context(), func() { cancel(session.ErrClosed) })
	o := &observer{ln: e.ln, ch: make(chan Leader, 1)}
	run := func() {
		defer close(o.ch)
		defer cancel(nil)
		defer stop()
		o.run(ctx)
	}
	if e.ln.check() != nil || !e.ln.c.Keeper.Go(run) {
		stop()
		cancel(nil)
		close(o.ch)
	}
	return o.ch
}

// observer follows the head of a line, over all sessions of its client.
type observer struct {
	ln   *lineup
	ch   chan Leader // of one element, which is replaced until it is read
	last Leader
	told bool
}

func (o *observer) run(ctx context.Context) {
	for ctx.Err() == nil && o.ln.c.Keeper.AwaitUsable(ctx) {
		t, err := o.ln.c.Table()
		if err != nil {
			continue // it broke just now
		}
		if err := o.look(ctx, t); err != nil && t.Pause() != nil {
			// The session is over, or about to be replaced; awaitUsable knows.
			continue
		}
	}
}

// look tells who is first in line and returns when that may have changed. An
// error says that it could not be read.
func (o *observer) look(ctx context.Context, t *held.Table) error {
	w := t.Watch(o.ln.path, session.OnChildren, nil)
	o.wait(ctx, t, w.Armed())
	list, err := session.Within(ctx, t.Session, func() (session.Hint, error) { return t.Look(o.ln.path, session.OfChildren) })
	if err != nil {
		return err
	}
	var head session.Hint
	if all := line.Sort(list.Names); len(all) > 0 {
		if head, err = o.ln.placeAt(ctx, t, all[0]); err != nil {
			return err
		}
		if !head.Exists { // gone meanwhile, which the watch is about to tell
			o.wait(ctx, t, w.Woken())
			return nil
		}
	}
	o.tell(leaderOf(t, head))
	o.wait(ctx, t, w.Woken())

	n, err := w.Found()
	if err == nil && !n.Exists {
		return o.awaitLine(ctx, t)
	}
	return err
}

// awaitLine waits until the parent of the line is there, without which there is
// nothing to watch.
func (o *observer) awaitLine(ctx context.Context, t *held.Table) error {
	w := t.Watch(o.ln.path, session.OnExists, nil)
	o.wait(ctx, t, w.Armed())
	n, err := session.Within(ctx, t.Session, func() (session.Hint, error) { return t.Hint(o.ln.path, session.OfNode) })
	if err == nil && !n.Exists {
		o.wait(ctx, t, w.Woken())
	}
	return err
}

// wait returns when the channel is closed, or nobody is interested any more.
func (o *observer) wait(ctx context.Context, t *held.Table, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-ctx.Done():
	case <-t.Over():
	}
}

// tell puts a leader into the channel, in place of one that has not been read.
func (o *observer) tell(l Leader) {
	if o.told && l == o.last {
		return
	}
	o.told, o.last = true, l
	select {
	case <-o.ch:
	default:
	}
	o.ch <- l
}
