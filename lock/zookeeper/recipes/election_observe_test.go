package recipes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// awaitLeader reads until a leader has this name; "" is nobody.
func awaitLeader(t testing.TB, ch <-chan Participant, name string) Participant {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case l, ok := <-ch:
			if !ok {
				t.Fatal("channel is closed")
			}
			if l.Name == name {
				return l
			}
		case <-end:
			t.Fatalf("leader %q: not after %v", name, patience)
		}
	}
}

func resign(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
}

func TestElectionLeader(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	e := MustNewElection(r.Client, "/e", "me, \"or\" <so>")
	if l, err := e.Leader(bounded(t)); !errors.Is(err, ErrNoLeader) {
		t.Errorf("Leader() = %+v, %v; want %v", l, err, ErrNoLeader)
	}
	mine := campaign(t, e)
	l, err := MustNewElection(r.Other, "/e", "").Leader(bounded(t))
	if err != nil || l.Name != e.ln.candidate || l.Fence != mine.Fence() || l.Instance != clientOf(r.Client).Owner.Instance || l.Host == "" || l.PID == 0 || !l.Holds {
		t.Errorf("Leader() = %+v, %v; want me", l, err)
	}
	if err := MustNewElection(r.Other, "/e", "").Revoke(bounded(t)); err != nil {
		t.Errorf("Revoke() = %v", err)
	}
	await(t, "Revoked()", mine.Revoked())
	l.Revoked = true
	if again, err := e.Leader(bounded(t)); err != nil || again != l {
		t.Errorf("Leader() = %+v, %v; want %+v", again, err, l)
	}
	resign(t, mine)
	if l, err := e.Leader(bounded(t)); !errors.Is(err, ErrNoLeader) {
		t.Errorf("Leader() = %+v, %v; want %v", l, err, ErrNoLeader)
	}
	if _, err := e.Leader(canceled(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("Leader() = %v, want %v", err, context.Canceled)
	}
}

// An observer follows the leaders from before there was an election to the
// end: over reconnects, lost sessions, and parents that go and come.
func TestElectionObserve(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	ctx, cancel := context.WithCancel(bounded(t))
	ch := MustNewElection(r.Client, "/e", "").Observe(ctx)
	other := MustNewElection(r.Client, "/e", "").Observe(ctx) // shares the watches
	elect := func(name string) *Lease { return campaign(t, MustNewElection(r.Other, "/e", name)) }
	see := func(l *Lease, name string) {
		t.Helper()
		for _, ch := range []<-chan Participant{ch, other} {
			if got := awaitLeader(t, ch, name); got.Fence != l.Fence() {
				t.Errorf("leader %+v, want the fence %v", got, l.Fence())
			}
		}
	}
	nobody := func() {
		t.Helper()
		awaitLeader(t, ch, "")
		awaitLeader(t, other, "")
	}
	nobody()
	l := elect("one")
	see(l, "one")

	// A change while the connection is away.
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	resign(t, l)
	l = elect("two")
	r.Proxy.Refuse(false)
	see(l, "two")
	resign(t, l)
	nobody()

	// A change while the session is being replaced.
	l = elect("three")
	see(l, "three")
	killSession(t, r.Client, r.Proxy)
	resign(t, l)
	l = elect("four")
	see(l, "four")

	// And none: the same leader is not told again.
	killSession(t, r.Client, r.Proxy)
	until(t, "usable", func() bool { return r.Client.Locker().Ping(bounded(t)) == nil })
	resign(t, l)
	if next := <-ch; next != (Participant{}) {
		t.Errorf("leader %+v, want none", next)
	}
	awaitLeader(t, other, "")

	// The parent goes, and comes again.
	until(t, "parent removed", func() bool {
		err := r.Raw.Delete(r.Config.Chroot+"/e", -1)
		return err == nil || errors.Is(err, zk.ErrNoNode)
	})
	l = elect("five")
	see(l, "five")
	resign(t, l)
	nobody()

	cancel()
	for _, ch := range []<-chan Participant{ch, other} {
		for range ch { // until it is closed
		}
	}
}

// Who does not read holds up nobody, and gets the latest in the end.
func TestElectionObserveSlowly(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	ch := MustNewElection(c[0], "/e", "").Observe(bounded(t))
	live := MustNewElection(c[0], "/e", "").Observe(bounded(t))
	for _, name := range []string{"a", "b", "c"} {
		l := campaign(t, MustNewElection(c[1], "/e", name))
		awaitLeader(t, live, name)
		resign(t, l)
	}
	last := campaign(t, MustNewElection(c[1], "/e", "last"))
	awaitLeader(t, live, "last")
	if got := awaitLeader(t, ch, "last"); got.Fence != last.Fence() {
		t.Errorf("leader %+v", got)
	}
	resign(t, last)
	awaitLeader(t, ch, "")
}

func TestElectionObserveEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		end  func(c *zookeeper.Client)
	}{
		{"closed", func(c *zookeeper.Client) { _ = c.Close(context.Background()) }},
		{"abandoned", (*zookeeper.Client).Abandon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := open(t, sharedConfig(t))
			ch := MustNewElection(c, "/e", "").Observe(context.Background())
			awaitLeader(t, ch, "")
			tt.end(c)
			if l, ok := <-ch; ok {
				t.Errorf("leader %+v, want a closed channel", l)
			}
			if l, ok := <-MustNewElection(c, "/e", "").Observe(context.Background()); ok {
				t.Errorf("leader %+v of a closed client", l)
			}
		})
	}
}
