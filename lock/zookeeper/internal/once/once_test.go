package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testserver.M{M: m})
}

// open returns a session in a chroot of the test's own, and the path of that chroot.
func open(t *testing.T) (*held.Table, string) {
	t.Helper()
	return openAt(t, testserver.SharedZooKeeper(t)...)
}

func openAt(t *testing.T, servers ...string) (*held.Table, string) {
	t.Helper()
	_, table, chroot := connect(t, servers...)
	return table, chroot
}

func connect(t *testing.T, servers ...string) (*zookeeper.Client, *held.Table, string) {
	t.Helper()
	c, err := zookeeper.Open(zktest.Bounded(t), zookeeper.Config{
		Servers: servers, Chroot: testserver.Chroot(t), Logger: zktest.Logger(),
		SessionTimeout: 60 * time.Second, TickTime: zktest.Tick, OpenTimeout: zktest.Patience,
	})
	if err != nil {
		t.Fatalf("Open() = %v", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	base, _ := held.ClientOf(c)
	table, err := base.Table()
	if err != nil {
		t.Fatalf("Table() = %v", err)
	}
	return c, table, base.Chroot
}

func TestWriteOutcomes(t *testing.T) {
	t.Parallel()
	table, chroot := open(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	create := func(path string) []any { return []any{table.Client.Persistent(chroot+path, nil)} }
	for _, tt := range []struct {
		name string
		ctx  context.Context
		ops  []any
		want session.Outcome
		code error
	}{
		{"applied", t.Context(), create("/a"), session.Applied, nil},
		{"there already", t.Context(), create("/a"), session.Refused, zk.ErrNodeExists},
		{"no parent", t.Context(), create("/b/c"), session.Refused, zk.ErrNoNode},
		{"given up before", ended, create("/d"), session.Unsent, nil},
		{"not applied by the one given up", t.Context(), create("/d"), session.Applied, nil},
		{"two operations", t.Context(), append(create("/e"), create("/f")...), session.Applied, nil},
	} {
		var settled []session.Outcome
		r := once.Write(tt.ctx, table, func(r session.Result) { settled = append(settled, r.Outcome) }, tt.ops...)
		if r.Outcome != tt.want || tt.code != nil && !r.RefusedAt(0, tt.code) {
			t.Errorf("%s: Write() = %v, %v, want %v, %v", tt.name, r.Outcome, r.Err, tt.want, tt.code)
		}
		if len(settled) != 1 || settled[0] != tt.want {
			t.Errorf("%s: settled with %v, want %v once", tt.name, settled, tt.want)
		}
		if tt.want == session.Applied && len(r.Created) != len(tt.ops) {
			t.Errorf("%s: Created = %q, want %d paths", tt.name, r.Created, len(tt.ops))
		}
	}
}

// A write after the end of its session is not sent, and says so.
func TestWriteAfterTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	c, table, chroot := connect(t, testserver.SharedZooKeeper(t)...)
	if err := c.Close(zktest.Bounded(t)); err != nil {
		t.Fatal(err)
	}
	settled := 0
	r := once.Write(zktest.Bounded(t), table, func(session.Result) { settled++ }, table.Client.Persistent(chroot+"/late", nil))
	if r.Outcome != session.Unsent || r.Err == nil || settled != 1 {
		t.Errorf("Write() = %v, %v, settled %d times, want it unsent, with a reason, once", r.Outcome, r.Err, settled)
	}
}

// More writes at once than there are stamps are all applied.
func TestWritesShareStamps(t *testing.T) {
	t.Parallel()
	table, chroot := open(t)
	var wg sync.WaitGroup
	for i := range 3 * once.Stamps {
		wg.Go(func() {
			path := fmt.Sprintf("%s/%d", chroot, i)
			if r := once.Write(zktest.Bounded(t), table, nil, table.Client.Persistent(path, nil)); r.Outcome != session.Applied {
				t.Errorf("Write(%s) = %v, %v, want it to be applied", path, r.Outcome, r.Err)
			}
		})
	}
	wg.Wait()
	beside, err := table.Session.Reads.Decide(held.Above(table.Session.Member()), session.OfChildren)
	if err != nil {
		t.Fatal(err)
	}
	stamps := 0
	for _, name := range beside.Names {
		if strings.HasPrefix(held.Above(table.Session.Member())+"/"+name, table.Session.Member()+"-") {
			stamps++
		}
	}
	if stamps < 1 || stamps > once.Stamps {
		t.Errorf("the session has %d stamps, want %d at most", stamps, once.Stamps)
	}
}

// A stamp is claimed as long as the session lives, even if the connection breaks at that
// moment.
func TestStampOutlivesTheConnection(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartZooKeeperProxy(t, testserver.SharedZooKeeper(t)[0])
	table, _ := openAt(t, proxy.Addr())
	ctx, stop := context.WithCancel(zktest.Bounded(t))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				switch cl, err := once.ClaimStamp(ctx, table); {
				case err == nil:
					cl.Free()
				case ctx.Err() == nil:
					t.Errorf("ClaimStamp() = %v", err)
					stop()
				}
			}
		})
	}
	for range 15 {
		if err := table.Session.Pulse.FinalBarrier(); err != nil {
			t.Error(err)
		}
		proxy.Cut()
	}
	stop()
	wg.Wait()
}

// A caller whose time is over leaves, and the write goes on. Its true outcome is told all the same.
func TestWriteGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartZooKeeperProxy(t, testserver.SharedZooKeeper(t)[0])
	table, chroot := openAt(t, proxy.Addr())
	match := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(chroot+"/slow"))
	refused := proxy.HoldNextReply(match) // the stamp is not there yet
	defer refused.Release()
	ctx, cancel := context.WithCancel(zktest.Bounded(t))
	settled, left := make(chan session.Result, 1), make(chan session.Result, 1)
	go func() {
		left <- once.Write(ctx, table, func(r session.Result) { settled <- r }, table.Client.Persistent(chroot+"/slow", nil))
	}()
	zktest.Await(t, "the refusal", refused.Held())
	hold := proxy.HoldNextReply(match)
	defer hold.Release()
	refused.Release()
	zktest.Await(t, "the reply", hold.Held())
	cancel()
	select {
	case r := <-left:
		if r.Outcome != session.Unknown || !errors.Is(r.Err, context.Canceled) {
			t.Errorf("Write() = %v, %v, want it unknown, with the cause", r.Outcome, r.Err)
		}
	case <-time.After(zktest.Patience):
		t.Fatal("Write() waits on after the end of its context")
	}
	hold.Release()
	if r := <-settled; r.Outcome != session.Applied {
		t.Errorf("settled with %v, %v, want it applied", r.Outcome, r.Err)
	}
}

// A write that gets no stamp is not sent, and says why. It needs none of the locks of its session.
func TestWriteWithoutAStamp(t *testing.T) {
	t.Parallel()
	table, chroot := open(t)
	write := func(ctx context.Context) session.Result {
		settled := make(chan session.Result, 1)
		once.Begin(ctx, table, func(r session.Result) { settled <- r }, table.Client.Persistent(chroot+"/late", nil))
		return <-settled
	}
	var stamps []*held.Claim
	for range once.Stamps {
		cl, err := once.ClaimStamp(t.Context(), table)
		if err != nil {
			t.Fatalf("ClaimStamp() = %v", err)
		}
		stamps = append(stamps, cl)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := write(ctx); r.Outcome != session.Unsent || !errors.Is(r.Err, context.DeadlineExceeded) {
		t.Errorf("Begin() while all stamps are in use = %v, %v, want it unsent at its deadline", r.Outcome, r.Err)
	}
	for _, cl := range stamps {
		cl.Free()
	}
	most := table.Client.MaxClaims
	table.Client.MaxClaims = 0
	defer func() { table.Client.MaxClaims = most }()
	if r := write(t.Context()); r.Outcome != session.Applied {
		t.Errorf("Begin() in a session with all its locks = %v, %v, want it applied", r.Outcome, r.Err)
	}
}
