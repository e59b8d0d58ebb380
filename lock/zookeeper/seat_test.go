package zookeeper

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

func TestSeatsAreWrittenIntoTheData(t *testing.T) {
	t.Parallel()
	o := owner{Host: "h", PID: 1, Instance: "i", Nonce: "/m", Try: "7"}
	req := &zk.CreateRequest{Data: o.encode()}
	take := seated(req)
	for _, seat := range []int{5, 0, maxBatch - 1, 1} {
		take(seat)
		if got := seatOf(req.Data); got != seat {
			t.Errorf("seat %d is read as %d from %s", seat, got, req.Data)
		}
		if got := parseOwner(req.Data); got != o {
			t.Errorf("with seat %d the owner is %+v, want %+v", seat, got, o)
		}
	}
	revoked, err := withRevocation(req.Data)
	if err != nil || seatOf(revoked) != 1 {
		t.Errorf("revoked: %s, %v, want seat 1 still", revoked, err)
	}
	for _, data := range []string{"", "{", "x", "[1]"} {
		if seated(&zk.CreateRequest{Data: []byte(data)}) != nil {
			t.Errorf("data %q of nobody's takes seats", data)
		}
	}
	for _, data := range []string{`{"seat":-1}`, `{"seat":128}`, `{"seat":"2"}`, "nonsense"} {
		if got := seatOf([]byte(data)); got != 0 {
			t.Errorf("seatOf(%s) = %d, want 0", data, got)
		}
	}
	if maxBatch > 1<<seatBits {
		t.Errorf("a Multi has %d seats, and a fence %d", maxBatch, 1<<seatBits)
	}
}

// answeredOrNot runs a test twice, with a client behind a proxy; the second time a
// reply is to be lost.
func answeredOrNot(t *testing.T, test func(t *testing.T, cfg Config, proxy *testserver.Proxy, c *Client, lost bool)) {
	t.Helper()
	for name, lost := range map[string]bool{"answered": false, "reply lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
			cfg.Servers = []string{proxy.Addr()}
			test(t, cfg, proxy, open(t, cfg), lost)
		})
	}
}

// Places that were taken in one Multi have fences that grow in the order in which
// they get the lock, and everybody is told the same ones; also where the Multi was
// not answered.
func TestPlacesOfOneMultiHaveDifferentFences(t *testing.T) {
	t.Parallel()
	answeredOrNot(t, func(t *testing.T, cfg Config, proxy *testserver.Proxy, c *Client, lost bool) {
		m := c.Mutex("/m")
		head, err := m.Acquire(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		creates := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(cfg.Chroot+"/m/lock-"))
		const n = 20
		var leases []*Lease
		var mu sync.Mutex
		var wg sync.WaitGroup
		// While one Multi waits for its answer, the others gather for the next.
		first := proxy.HoldNext(creates)
		for range n {
			wg.Go(func() {
				l, err := m.Acquire(bounded(t))
				if err != nil {
					t.Errorf("Acquire() = %v", err)
					return
				}
				mu.Lock()
				leases = append(leases, l)
				mu.Unlock()
				if err := l.Release(bounded(t)); err != nil {
					t.Errorf("Release() = %v", err)
				}
			})
		}
		await(t, "the first create", first.Held())
		if lost {
			proxy.DropNextReply(creates)
		}
		first.Release()
		until(t, "all in line", func() bool { return placesOf(c) == n+1 })

		seats := map[int64]int{}
		var told []idem.Fence
		for _, p := range participants(t, m) {
			told = append(told, p.Fence)
			seats[int64(p.Fence.Token>>seatBits)]++
		}
		head.ReleaseBehind()
		wg.Wait()
		var had []idem.Fence
		for _, l := range append([]*Lease{head}, leases...) {
			had = append(had, l.Fence())
		}
		slices.SortFunc(had, func(a, b idem.Fence) int { return int(int64(a.Token) - int64(b.Token)) })
		if !slices.Equal(told, had) {
			t.Errorf("participants were told to have fences\n%v, in the order of their turns; they had\n%v", told, had)
		}
		for i := range leases[1:] {
			if !leases[i].Fence().Before(leases[i+1].Fence()) {
				t.Errorf("fence %v was followed by %v", leases[i].Fence(), leases[i+1].Fence())
			}
		}
		if len(seats) == n+1 {
			t.Error("no two places were taken in one Multi: the test has tested nothing")
		}
	})
}

// Every kind of place has a seat, and what it is told to be is what it is, beside
// whatever writes.
func TestPlacesOfAllKindsHaveSeats(t *testing.T) {
	t.Parallel()
	answeredOrNot(t, func(t *testing.T, cfg Config, proxy *testserver.Proxy, c *Client, lost bool) {
		paths := []string{"/e", "/rw", "/sem", "/other"}
		for _, path := range paths { // so that no create is refused
			if err := sessionOf(c).ensureLine(c.line(path)); err != nil {
				t.Fatal(err)
			}
		}
		w := sessionOf(c).w
		waiting := func(n int) {
			t.Helper()
			until(t, "writes to wait", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.waiting) == n
			})
		}
		// While both Multis are under way, those below come to share the third.
		creates := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(cfg.Chroot+"/other/lock-"))
		var holds []*testserver.Hold
		var wg sync.WaitGroup
		for range flights {
			h := proxy.HoldNext(creates)
			holds = append(holds, h)
			wg.Go(func() { _, _ = c.Mutex("/other").TryAcquire(bounded(t)) })
			await(t, "a create", h.Held())
		}
		for i := range 3 {
			wg.Go(func() { _, _ = c.Mutex("/other").TryAcquire(bounded(t)) })
			waiting(i + 1)
		}
		e, rw, sem := c.Election("/e", "me"), c.RWMutex("/rw"), c.Semaphore("/sem", 3)
		leases := make([]chan *Lease, 4)
		get := func(i int, acquire func(context.Context) (*Lease, error)) {
			leases[i] = make(chan *Lease, 1)
			wg.Go(func() {
				l, err := acquire(bounded(t))
				if err != nil {
					t.Errorf("no. %d: %v", i, err)
				}
				leases[i] <- l
			})
			waiting(4 + i)
		}
		get(0, func(ctx context.Context) (*Lease, error) {
			l, err := e.Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return l.Lease, nil
		})
		get(1, func(ctx context.Context) (*Lease, error) { return sem.Acquire(ctx, 1) })
		// A mutex and a read-write lock on one path have one line.
		get(2, c.Mutex("/rw").Acquire)
		get(3, rw.AcquireWrite)
		if lost {
			proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(cfg.Chroot+"/e/")))
		}
		for _, h := range holds {
			h.Release()
		}
		told := func(ln *line, n int) []Participant {
			t.Helper()
			var them []Participant
			until(t, "all in line", func() bool {
				them, _ = ln.participants(bounded(t), first)
				return len(them) == n
			})
			return them
		}
		both := told(rw.ln, 2)
		for i, want := range []idem.Fence{told(e.ln, 1)[0].Fence, told(sem.ln, 1)[0].Fence, both[0].Fence, both[1].Fence} {
			l := <-leases[i]
			if l == nil {
				t.FailNow()
			}
			if l.Fence() != want || want.Token&(1<<seatBits-1) == 0 {
				t.Errorf("no. %d has fence %v, and everybody is told %v; want a seat behind others", i, l.Fence(), want)
			}
			l.ReleaseBehind()
		}
		if !both[0].Fence.Before(both[1].Fence) {
			t.Errorf("fence %v was followed by %v", both[0].Fence, both[1].Fence)
		}
		wg.Wait()
	})
}

// Those who look while a line is being read are shown the next reading of it, and
// share that.
func TestViewsAreSharedByThoseWhoCameBefore(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	cfg.Servers = []string{proxy.Addr()}
	c := open(t, cfg)
	s, ln := sessionOf(c), c.line("/m")
	first, err := s.enqueue(bounded(t), ln, exclusive, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer := proxy.HoldNext(testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains(cfg.Chroot+"/m")))
	defer answer.Release()
	under := s.viewOf(ln.path)
	await(t, "the first reading", answer.Held())
	second, err := s.enqueue(bounded(t), ln, exclusive, nil)
	if err != nil {
		t.Fatal(err)
	}
	next := s.viewOf(ln.path)
	for range 8 {
		if s.viewOf(ln.path) != next {
			t.Error("two who wait for the next reading do not share it")
		}
	}
	if next == under {
		t.Fatal("who comes while the line is read is shown that reading")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.look(ctx, second); err == nil {
		t.Error("look() with a context that has ended = <nil>, want an error")
	}
	answer.Release()
	await(t, "the second reading", next.done)
	if next.err != nil || !slices.ContainsFunc(next.line, second.place.is) || !next.sent.After(under.sent) {
		t.Errorf("the second reading shows %v, %v, want the second place", next.line, next.err)
	}
	until(t, "no reading under way", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.views) == 0
	})
	first.ReleaseBehind()
	second.ReleaseBehind()
}

// A place that was not seen in line behind the head reads its znode; see
// TestMutexHandOverNoticesAZnodeThatIsGone. One that was seen long ago does as well.
func TestMutexHandOverTrustsNoOldLook(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	s, ln := sessionOf(c), c.line("/m")
	l, err := s.enqueue(bounded(t), ln, exclusive, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.vouched(l) {
		t.Error("a place that nobody has seen is vouched for")
	}
	l.slot.seen, l.slot.seenBy = s.cfg.now(), s.gen
	if !s.vouched(l) {
		t.Error("a place that was just seen is not vouched for")
	}
	l.slot.seenBy--
	if s.vouched(l) {
		t.Error("a place that was seen over another connection is vouched for")
	}
	l.slot.seen, l.slot.seenBy = s.cfg.now().Add(-young), s.gen
	if s.vouched(l) {
		t.Error("a place that was seen a second ago is vouched for")
	}
	l.ReleaseBehind()
}

// A culprit leaves its seat when the rest of its Multi is sent again. What the places
// are told to have, what they have in their data, and what their fences are, is where
// they sat in the Multi that was applied.
func TestSeatsAreThoseOfTheMultiThatWasApplied(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	s, ln := sessionOf(c), c.line("/m")
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	if err := s.ensureLine(ln); err != nil {
		t.Fatal(err)
	}
	absent := func() *write {
		return newWrite([]any{&zk.DeleteRequest{Path: c.cfg.Chroot + "/absent", Version: -1}})
	}
	place := func() *write {
		a := &attempt{s: s, place: &place{line: ln, prefix: exclusive + "-" + newUUID() + "-", data: c.owned(ln.name)}}
		wr := a.write(a.place.request(s))
		wr.answer = make(chan result, 1)
		return wr
	}
	batch := []*write{absent(), place(), absent(), place(), place(), absent(), absent(), place()}
	s.w.sendAll(slices.Clone(batch))
	var before idem.Fence
	for i, wr := range batch {
		r := <-wr.answer
		if wr.seat == nil {
			if !r.refusedBy(zk.ErrNoNode) {
				t.Errorf("write %d: %+v, want a culprit", i, r)
			}
			continue
		}
		if r.outcome != applied {
			t.Fatalf("write %d: %+v, want a place", i, r)
		}
		data, stat, err := raw.Get(r.created[0])
		if err != nil || stat.Czxid != r.zxid || seatOf(data) != r.seat {
			t.Errorf("write %d is told czxid %d and seat %d; its znode has %d and %d (%v)", i, r.zxid, r.seat, stat.Czxid, seatOf(data), err)
		}
		fence := s.placeFence(r.zxid, r.seat)
		if before.Token != 0 && !before.Before(fence) {
			t.Errorf("write %d has fence %v, and one in front of it %v", i, fence, before)
		}
		before = fence
	}
}
