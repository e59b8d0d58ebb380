package zookeeper

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Observe returns a channel with the leader in office, and then every new one:
// the zero Leader where nobody is. It goes on over reconnects and lost sessions.
// A reader that is slow gets the latest, and leaders who were in office only
// between two looks are left out; the last one never is. While there is no
// connection nothing is said: an observer cannot tell whether there is another
// leader, see [Client.Watch].
//
// The channel is closed when ctx ends or the client is closed, and at once where
// the path is not valid.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ln.c.keeper.Context(), func() { cancel(session.ErrClosed) })
	o := &observer{ln: e.ln, ch: make(chan Leader, 1)}
	run := func() {
		defer close(o.ch)
		defer cancel(nil)
		defer stop()
		o.run(ctx)
	}
	if e.ln.check() != nil || !e.ln.c.keeper.Go(run) {
		stop()
		cancel(nil)
		close(o.ch)
	}
	return o.ch
}

// observer follows the head of a line, over all sessions of its client.
type observer struct {
	ln   *line
	ch   chan Leader // of one element, which is replaced until it is read
	last Leader
	told bool
}

func (o *observer) run(ctx context.Context) {
	for ctx.Err() == nil && o.ln.c.keeper.AwaitUsable(ctx) {
		s, err := o.ln.c.usable()
		if err != nil {
			continue // it broke just now
		}
		if err := o.look(ctx, s); err != nil && s.Pause() != nil {
			// The session is over, or about to be replaced; awaitUsable knows.
			continue
		}
	}
}

// look tells who is first in line and returns when that may have changed. An
// error says that it could not be read.
func (o *observer) look(ctx context.Context, s *locks) error {
	w := s.Watch(o.ln.path, session.OnChildren, nil)
	o.wait(ctx, s, w.Armed())
	line, err := session.Within(ctx, s.Session, func() (session.Hint, error) { return s.Look(o.ln.path, session.OfChildren) })
	if err != nil {
		return err
	}
	var head session.Hint
	if all := positions(line.Names); len(all) > 0 {
		if head, err = s.placeAt(ctx, o.ln, all[0]); err != nil {
			return err
		}
		if !head.Exists { // gone meanwhile, which the watch is about to tell
			o.wait(ctx, s, w.Woken())
			return nil
		}
	}
	o.tell(s.leader(head))
	o.wait(ctx, s, w.Woken())

	n, err := w.Found()
	if err == nil && !n.Exists {
		return o.awaitLine(ctx, s)
	}
	return err
}

// awaitLine waits until the parent of the line is there, without which there is
// nothing to watch.
func (o *observer) awaitLine(ctx context.Context, s *locks) error {
	w := s.Watch(o.ln.path, session.OnExists, nil)
	o.wait(ctx, s, w.Armed())
	n, err := session.Within(ctx, s.Session, func() (session.Hint, error) { return s.Hint(o.ln.path, session.OfNode) })
	if err == nil && !n.Exists {
		o.wait(ctx, s, w.Woken())
	}
	return err
}

// wait returns when the channel is closed, or nobody is interested any more.
func (o *observer) wait(ctx context.Context, s *locks, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-ctx.Done():
	case <-s.Over():
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
