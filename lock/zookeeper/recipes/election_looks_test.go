package recipes

import (
	"errors"
	"path"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
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
	read := r.Proxy.HoldNext(r.readsOf(old))
	defer read.Release()
	ch := MustNewElection(r.Client, linePath, "").Observe(bounded(t))
	await(t, "the read", read.Held())
	resign(t, old)
	read.Release()
	if first := <-ch; first != (Participant{}) {
		t.Errorf("the observer told of %+v first, want no leader", first)
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

// An observer that may not read tells nothing, and tells the leader once it may read. A call is
// refused at once.
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

			counter := r.Proxy.Count(znode)
			ch := e.Observe(bounded(t))
			until(t, "the observer to ask again", func() bool { return counter.Seen().Total() > 3 })
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
