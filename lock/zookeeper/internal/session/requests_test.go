package session

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A plain connection of the library begins another session after the end of its own. Package
// wire stops that. This test goes without it, so the pin alone keeps a delete of the old session
// from the lock of the next owner.
func TestWriteOfAnEarlierSessionIsRefused(t *testing.T) {
	t.Parallel()
	servers, root := testserver.SharedZooKeeper(t), testserver.Chroot(t)
	proxy := testserver.StartZooKeeperProxy(t, servers[0])
	conn, next := rawConn(t, []string{proxy.Addr()}), rawConn(t, servers)
	st := &Status{log: testLogger(), over: make(chan struct{}), changed: make(chan struct{}), now: leaseclock.Now, connected: true}
	tr := &Trust{status: st, clock: clock{timeout: 10 * time.Second, tick: testTick}}
	r := &requests{status: tr.status, trust: tr, conn: conn, renewed: func() {}}
	r.member = &zk.SetDataRequest{Path: root + "/0123456789ABCDEFGHIJKLMNOP", Version: -1}
	create(t, next, root, 0)
	create(t, conn, r.member.Path, zk.FlagEphemeral)
	if got := r.send(&zk.CreateRequest{Path: root + "/lock", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral}); got.Outcome != Applied {
		t.Fatalf("send(create) = %+v in the session of the member, want it applied", got)
	}

	first := conn.SessionID()
	if err := testserver.KillSession(servers[0], first, password(proxy)); err != nil {
		t.Fatalf("KillSession() = %v", err)
	}
	until(t, "lock free", func() bool { ok, _, err := next.Exists(root + "/lock"); return err == nil && !ok })
	create(t, next, root+"/lock", zk.FlagEphemeral)
	proxy.Cut()
	until(t, "another session", func() bool { return conn.State() == zk.StateHasSession && conn.SessionID() != first })

	got := r.send(&zk.DeleteRequest{Path: root + "/lock", Version: -1})
	if got.Outcome != Ended || !errors.Is(got.Err, ErrNoMember) || !errors.Is(st.Err(), ErrNoMember) {
		t.Errorf("send(delete) = %+v in a later session, then Err() = %v; want %v", got, st.Err(), ErrNoMember)
	}
	if ok, _, err := next.Exists(root + "/lock"); err != nil || !ok {
		t.Errorf("Exists(lock) = %v, %v; want that the next owner still has it", ok, err)
	}
}

// A write without an answer says nothing about the session. If it renewed trust, a lease would be
// believed in while the servers give its lock away.
func TestAnUnansweredWriteRenewsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		s.requests.renewed = func() { t.Error("an unanswered write has confirmed a connection") }
		if got := s.requests.send(); got.Outcome != Unsent {
			t.Errorf("send() = %+v without a connection, want it unsent", got)
		}
		reconnect(s)
		if got := s.requests.send(); got.Outcome != Unknown {
			t.Errorf("send() = %+v without an answer, want it unknown", got)
		}
		if _, err := s.requests.confirmation(); !errors.Is(err, errNotConfirmed) || s.Trust.Trusted() || s.Trust.Left() > 0 {
			t.Errorf("confirmation() = %v, trusted for %v, want no trust", err, s.Trust.Left())
		}
		confirm(s)
		left := s.Trust.Left()
		time.Sleep(time.Second)
		if s.requests.send(); s.Trust.Left() != left-time.Second {
			t.Errorf("trusted for %v a second later, want %v", s.Trust.Left(), left-time.Second)
		}
	})
}

// lineCounter is a log that counts the lines with a text.
type lineCounter struct {
	of []byte
	n  atomic.Int32
}

func (c *lineCounter) Write(line []byte) (int, error) {
	if bytes.Contains(line, c.of) {
		c.n.Add(1)
	}
	return len(line), nil
}

// The guard of a write drops a connection that gives no answer, once for each patience, and leaves
// the connection alone once the write has its answer.
func TestGuardDropsOnlyWhatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		logged := &lineCounter{of: []byte("was not answered")}
		s.Status.log = slog.New(slog.NewTextHandler(logged, nil))
		drops := func() int {
			synctest.Wait()
			return int(logged.n.Load())
		}
		reconnect(s)
		_, patience := s.requests.patience(time.Now())
		s.requests.send()
		time.Sleep(3 * patience)
		if n := drops(); n != 0 {
			t.Errorf("the guard has dropped %d connections after the end of its write", n)
		}
		reconnect(s)
		answered := s.requests.guard()
		time.Sleep(patience * 5 / 2)
		if n := drops(); n != 2 {
			t.Errorf("the guard has dropped %d connections in two and a half times its patience, want 2", n)
		}
		answered()
		time.Sleep(3 * patience)
		if n := drops(); n != 2 {
			t.Errorf("the guard has dropped %d connections after the answer", n-2)
		}
		answered = s.requests.guard()
		s.requests.onState(zk.StateDisconnected)
		time.Sleep(3 * patience)
		if n := drops(); n != 2 {
			t.Errorf("the guard has dropped %d connections while there was none", n-2)
		}
		answered()
		reconnect(s)
		answered = s.requests.guard()
		time.Sleep(patience / 2)
		reconnect(s) // over which the write goes out, and which has its own time
		time.Sleep(patience * 3 / 4)
		if n := drops(); n != 2 {
			t.Errorf("the guard has dropped %d connections before their time", n-2)
		}
		time.Sleep(patience / 2)
		if n := drops(); n != 3 {
			t.Errorf("the guard has dropped %d connections that did not answer, want the last one", n-2)
		}
		answered()
	})
}

// The servers' refusal took the same way as an acknowledged write, so it renews trust. It names the
// znode whose ACL decided.
func TestRefusalRenewsTrust(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	r.create(t, r.path, 0)
	shut := &zk.CreateRequest{Path: r.path + "/shut", Acl: zk.WorldACL(zk.PermRead)}
	if got := r.s.Writes.Do(shut); got.Outcome != Applied {
		t.Fatalf("Write(create %s) = %+v", shut.Path, got)
	}
	for _, tt := range []struct {
		path string
		want error
	}{
		{r.path, zk.ErrNodeExists},
		{shut.Path + "/child", ErrNotPermitted},
	} {
		r.clock.Advance(time.Second) // no heartbeat is due before half a second more
		before := r.s.Trust.Left()
		if got := r.s.Writes.Do(&zk.CreateRequest{Path: tt.path, Acl: zk.WorldACL(zk.PermAll)}); !got.RefusedBy(tt.want) {
			t.Errorf("Write(create %s) = %+v, want %v", tt.path, got, tt.want)
		}
		if left := r.s.Trust.Left(); left <= before {
			t.Errorf("trusted for %v after a refusal, and for %v before, want more", left, before)
		}
	}
}

// If the ACL of the member refuses the pin, no write of the session can succeed any more. The
// session is over then.
func TestRefusedPinEndsTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := rawConn(t, testserver.SharedZooKeeper(t)).SetACL(r.s.Member(), zk.WorldACL(zk.PermRead), -1); err != nil {
		t.Fatalf("SetACL() = %v", err)
	}
	if got := r.s.Writes.Do(); got.Outcome != Refused && got.Outcome != Ended {
		t.Errorf("Write() = %+v, want it refused", got)
	}
	await(t, "the end of the session", r.s.Status.Over())
	if err := r.s.Status.Err(); !errors.Is(err, ErrNotPermitted) {
		t.Errorf("Err() = %v, want %v", err, ErrNotPermitted)
	}
}

// Servers that came back with older data may still have the session, and its member with an older
// version. The session ends then, because locks that it had released are there again.
func TestSessionEndsWhenItsMemberIsOlder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.s
	for range 3 {
		if got := s.Writes.Do(); got.Outcome != Applied {
			t.Fatalf("Write() = %+v, want it applied", got)
		}
	}
	other := rawConn(t, []string{r.proxy.Addr()})
	if _, err := other.Multi(&zk.DeleteRequest{Path: s.Member(), Version: -1}, &zk.CreateRequest{Path: s.Member(), Acl: zk.WorldACL(zk.PermAll)}); err != nil {
		t.Fatal(err)
	}
	if got := s.Writes.Do(); got.Outcome != Ended || !errors.Is(got.Err, ErrRewound) || !errors.Is(s.Status.Err(), ErrRewound) {
		t.Errorf("Write() = %+v on an older member, then Err() = %v; want %v", got, s.Status.Err(), ErrRewound)
	}
	until(t, "another session", func() bool { next := r.k.Current(); return next != nil && next != s })
}

func TestVersionsWrapAround(t *testing.T) {
	for _, tt := range []struct {
		version, than int32
		want          bool
	}{{1, 0, true}, {0, 0, false}, {5, 6, false}, {math.MinInt32, math.MaxInt32, true}, {math.MaxInt32, math.MinInt32, false}} {
		if got := later(tt.version, tt.than); got != tt.want {
			t.Errorf("later(%d, %d) = %v, want %v", tt.version, tt.than, got, tt.want)
		}
	}
}
