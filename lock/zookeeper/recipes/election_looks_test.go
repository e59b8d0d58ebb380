package recipes

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// readsOf matches the reads of a place in the rig's line.
func (r *rig) readsOf(l *Lease) testserver.Match {
	return testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(pathOf(l)))
}

// A leader that goes while an observer reads its place is not told.
func TestObserverOfALeaderThatLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	old := campaign(t, MustNewElection(r.Other, linePath, "old"))
	o := &observer{ln: MustNewElection(r.Client, linePath, "").ln, ch: make(chan Participant, 1)}
	read := r.Proxy.HoldNext(r.readsOf(old))
	defer read.Release()
	looked := make(chan error, 1)
	go func() { looked <- o.look(bounded(t), sessionOf(r.Client)) }()
	await(t, "the read", read.Held())
	resign(t, old)
	read.Release()
	if err := <-looked; err != nil || len(o.ch) != 0 {
		t.Errorf("look() = %v with %d leaders told, want none", err, len(o.ch))
	}
}

// A line that is made while an observer looks for its parent is followed.
func TestObserverOfALineThatComes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	exists := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpExists), testserver.Contains(r.Config.Chroot+linePath)))
	defer exists.Release()
	ch := MustNewElection(r.Client, linePath, "").Observe(bounded(t))
	await(t, "the read", exists.Held())
	l := campaign(t, MustNewElection(r.Other, linePath, "one"))
	exists.Release()
	awaitLeader(t, ch, "one")
	resign(t, l)
}

// The channel is closed as soon as the client begins to close, though it waits for a release.
func TestObserverEndsBeforeItsClientHasClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l := campaign(t, MustNewElection(r.Client, linePath, "one"))
	ch := MustNewElection(r.Client, linePath, "").Observe(context.Background())
	awaitLeader(t, ch, "one")
	s := sessionOf(r.Client)
	resign := r.Proxy.HoldNext(r.onLine())
	defer resign.Release()
	l.ReleaseInBackground()
	await(t, "the delete", resign.Held())
	closed, ended := make(chan error, 1), make(chan struct{})
	go func() { closed <- r.Client.Close(context.Background()) }()
	go func() {
		defer close(ended)
		for range ch {
		}
	}()
	await(t, "the end of the channel", ended)
	if s.Session.Watches.Watched()[session.WatchKey{Path: r.Config.Chroot + linePath, Kind: session.OnChildren}] == nil {
		t.Error("the channel was not closed before the next event")
	}
	resign.Release()
	if err := <-closed; err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// A leader that goes while it is read is not listed. A call for the leader alone then finds the
// next one.
func TestParticipantsThatLeaveWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for name, list := range map[string]func(e *Election) ([]Participant, error){
		"Leader": func(e *Election) ([]Participant, error) {
			p, err := e.Leader(bounded(t))
			return []Participant{p}, err
		},
		"Participants": func(e *Election) ([]Participant, error) { return e.Participants(bounded(t)) },
	} {
		old := campaign(t, MustNewElection(r.Other, linePath, "old"))
		next := r.queue(bounded(t), MustNewElection(r.Other, linePath, "next").Campaign)
		read := r.Proxy.HoldNext(r.readsOf(old))
		defer read.Release()
		var got []Participant
		call := make(chan error, 1)
		go func() {
			var err error
			got, err = list(MustNewElection(r.Client, linePath, ""))
			call <- err
		}()
		await(t, "the read", read.Held())
		resign(t, old)
		read.Release()
		if err := <-call; err != nil || len(got) != 1 || got[0].Name != "next" || !got[0].Holds {
			t.Errorf("%s = %+v, %v, want the next leader", name, got, err)
		}
		resign(t, next.granted())
	}
}

// An observer that may not read tells nothing, and asks again after a pause. It tells the leader
// once it may read. A call is refused at once.
func TestLeaderThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	const unreadable = zk.PermAll &^ zk.PermRead
	for name, of := range map[string]func(leader string) string{
		"the line":  path.Dir,
		"the place": func(leader string) string { return leader },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			l := campaign(t, MustNewElection(r.Other, linePath, "one"))
			e, znode := MustNewElection(r.Client, linePath, ""), of(pathOf(l))
			if _, err := r.Raw.SetACL(znode, zk.WorldACL(unreadable), -1); err != nil {
				t.Fatal(err)
			}
			if p, err := e.Leader(bounded(t)); !errors.Is(err, zookeeper.ErrNotPermitted) {
				t.Errorf("Leader() = %+v, %v, want %v", p, err, zookeeper.ErrNotPermitted)
			}

			const times, pause = 30, 5 * time.Millisecond
			counter, began := r.Proxy.Count(znode), time.Now()
			ch := e.Observe(bounded(t))
			until(t, "the observer to ask again and again", func() bool {
				n := 0
				for _, of := range counter.Seen().Requests {
					n += of
				}
				return n >= times
			})
			if took := time.Since(began); took < (times-2)*pause {
				t.Errorf("the observer asked %d times within %v, want pauses of %v", times, took, pause)
			}
			if len(ch) != 0 {
				t.Errorf("the observer told of %+v", <-ch)
			}
			if _, err := r.Raw.SetACL(znode, zk.WorldACL(zk.PermAll), -1); err != nil {
				t.Fatal(err)
			}
			if p := <-ch; p.Name != "one" {
				t.Errorf("leader %+v, want the one", p)
			}
			resign(t, l)
		})
	}
}
