package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Observe returns a channel with the present leader and then every new one. The zero
// Participant means that there is no leader. The channel goes on over reconnects and lost
// sessions. A slow reader gets the latest leader and misses those before. While there is no
// connection the channel is silent, because an observer cannot tell whether there is another
// leader. See [zookeeper.Client.Watch].
//
// The channel is closed when ctx ends or the client is closed, and at once if the path is not
// valid.
func (e *Election) Observe(ctx context.Context) <-chan Participant {
	o := &observer{ln: e.ln, ch: make(chan Participant, 1)}
	if e.ln.check() != nil || !e.ln.c.Keeper.Go(func() { o.run(ctx) }) {
		close(o.ch)
	}
	return o.ch
}

// observer follows the head of a line, over all sessions of its client.
type observer struct {
	ln   *lineup
	ch   chan Participant // with one element, which is replaced until it is read
	last Participant
	told bool
}

func (o *observer) run(ctx context.Context) {
	defer close(o.ch)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.ln.c.Keeper.Context(), cancel)()
	for ctx.Err() == nil && o.ln.c.Keeper.AwaitUsable(ctx) {
		if t, err := o.ln.c.Table(); err == nil && o.look(ctx, t) != nil {
			_ = t.Pause() // if the session is over, AwaitUsable waits for the next one
		}
	}
}

// look tells the head of the line and returns when it may have changed.
func (o *observer) look(ctx context.Context, t *held.Table) error {
	w := t.Watch(o.ln.path, session.OnChildren, nil)
	if !o.wait(ctx, t, w.Armed()) {
		return nil
	}
	list, err := w.Found()
	if err != nil {
		return err
	}
	if !list.Exists { // without a parent there are no children to watch
		w = t.Watch(o.ln.path, session.OnExists, nil)
		if !o.wait(ctx, t, w.Armed()) {
			return nil
		}
		if parent, err := w.Found(); err != nil || parent.Exists {
			return err
		}
	}
	var leader Participant
	if all := line.Sort(list.Names); len(all) > 0 {
		p, ok, err := o.ln.participant(ctx, t, all[0])
		if err != nil {
			return err
		}
		if !ok { // the watch is about to be woken
			o.wait(ctx, t, w.Woken())
			return nil
		}
		p.Holds = true
		leader = p
	}
	o.tell(leader)
	o.wait(ctx, t, w.Woken())
	return nil
}

// wait waits for ch to be closed. It returns false if the session or the observer has ended.
func (o *observer) wait(ctx context.Context, t *held.Table, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
	case <-t.Over():
	}
	return false
}

// tell puts a new leader into the channel, in place of one that has not been read.
func (o *observer) tell(leader Participant) {
	if o.told && leader.Fence == o.last.Fence {
		return
	}
	o.told, o.last = true, leader
	select {
	case <-o.ch:
	default:
	}
	o.ch <- leader
}
