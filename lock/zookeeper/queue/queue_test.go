package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

func offer(t testing.TB, q *Queue, data ...string) (ids []string) {
	t.Helper()
	for _, d := range data {
		id, err := q.Offer(bounded(t), []byte(d))
		if err != nil {
			t.Fatalf("Offer(%q) = %v", d, err)
		}
		ids = append(ids, id)
	}
	return ids
}

// wantQueue says what is in a queue, as its elements are polled.
func wantQueue(t testing.TB, q *Queue, want ...string) {
	t.Helper()
	var got []string
	for {
		e, ok, err := q.Poll(bounded(t))
		if err != nil {
			t.Fatalf("Poll() = %v", err)
		}
		if !ok {
			break
		}
		got = append(got, string(e.Data))
	}
	if !slices.Equal(got, want) {
		t.Errorf("in the queue: %q, want %q", got, want)
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	a, b := New(c[0], "/app/q"), New(c[1], "/app/q")
	if _, err := a.Remove(bounded(t)); !errors.Is(err, ErrEmpty) {
		t.Errorf("Remove() where there is no queue = %v, want ErrEmpty", err)
	}
	if there, _, err := rawConn(t, testserver.SharedZooKeeper(t)).Exists(a.path); there || err != nil {
		t.Errorf("Exists() = %v, %v after a call that does not wait, want no queue", there, err)
	}
	ids := offer(t, a, "one", "", "three")
	more, err := b.OfferAll(bounded(t), [][]byte{[]byte("four"), nil, []byte("six")})
	if err != nil || len(more) != 3 {
		t.Fatalf("OfferAll() = %v, %v", more, err)
	}
	if none, err := b.OfferAll(bounded(t), nil); err != nil || none != nil {
		t.Errorf("OfferAll() of nothing = %v, %v", none, err)
	}
	if n, err := b.Len(bounded(t)); n != 6 || err != nil {
		t.Errorf("Len() = %d, %v, want 6", n, err)
	}
	for range 2 {
		if e, err := b.Peek(bounded(t)); err != nil || e.ID != ids[0] || string(e.Data) != "one" {
			t.Errorf("Peek() = %v, %v, want the first", e, err)
		}
	}
	if e, err := b.Take(bounded(t)); err != nil || e.ID != ids[0] {
		t.Errorf("Take() = %v, %v, want the first", e, err)
	}
	if e, err := a.Remove(bounded(t)); err != nil || e.ID != ids[1] || len(e.Data) != 0 {
		t.Errorf("Remove() = %v, %v, want the second, which is empty", e, err)
	}
	wantQueue(t, b, "three", "four", "", "six")
	if _, err := a.Peek(bounded(t)); !errors.Is(err, ErrEmpty) {
		t.Errorf("Peek() of an empty queue = %v, want ErrEmpty", err)
	}
}

// The servers' numbers wrap; elements are in order all the same.
func TestQueueOrderAcrossWrap(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := New(c, "/q")
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	offer(t, q, "x")
	wantQueue(t, q, "x")
	for i, seq := range []string{"-2147483648", "2147483647", "2147483646", "-2147483647"} {
		name := fmt.Sprintf("%s-%024x00-%s", element, i, seq)
		if _, err := raw.Create(q.path+"/"+name, []byte(seq), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	create(t, raw, q.path+"/somebody-else", 0)
	wantQueue(t, q, "2147483646", "2147483647", "-2147483648", "-2147483647")
}

func TestQueueLimits(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := New(c, "/q", MaxLength(3), MaxElement(10), nil)
	offer(t, q, "a", strings.Repeat("b", 10))
	for _, tt := range []struct {
		q    *Queue
		data [][]byte
		want error
	}{
		{q, [][]byte{nil, make([]byte, 11)}, ErrElementTooLarge},
		{q, [][]byte{nil, nil}, ErrFull},
		{New(c, "/q"), [][]byte{make([]byte, 512<<10), make([]byte, 500<<10)}, ErrBatchTooLarge},
		{New(c, "/q", MaxLength(20_000)), make([][]byte, 12_000), ErrBatchTooLarge},
	} {
		if ids, err := tt.q.OfferAll(bounded(t), tt.data); !errors.Is(err, tt.want) || ids != nil {
			t.Errorf("OfferAll(%d elements) = %d, %v, want %v", len(tt.data), len(ids), err, tt.want)
		}
	}
	wantQueue(t, q, "a", strings.Repeat("b", 10))
	for _, q := range []*Queue{
		New(c, "/q", MaxLength(1)), New(c, "/q", MaxLength(lengthLimit)), New(c, "/q", MaxElement(1)),
	} {
		if _, err := q.Len(bounded(t)); err != nil {
			t.Errorf("Len() = %v at the limit of an option", err)
		}
	}
	for _, q := range []*Queue{
		New(c, "q"), New(c, "/q", MaxLength(0)), New(c, "/q", MaxLength(lengthLimit+1)),
		New(c, "/q", MaxElement(-1)), New(c, "/q", MaxElement(elementLimit+1)),
	} {
		_, offered := q.Offer(bounded(t), nil)
		_, taken := q.Take(bounded(t))
		_, length := q.Len(bounded(t))
		if offered == nil || taken == nil || length == nil {
			t.Errorf("a queue that cannot be: Offer() = %v, Take() = %v, Len() = %v, want errors", offered, taken, length)
		}
	}
}

// The largest of everything that is allowed gets through, both ways.
func TestQueueLargest(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := New(c, "/q", MaxElement(elementLimit))
	large := bytes.Repeat([]byte{0xfe}, elementLimit)
	if _, err := q.Offer(bounded(t), large); err != nil {
		t.Fatalf("Offer() of the largest element = %v", err)
	}
	d, err := q.TryReceive(bounded(t))
	if err != nil || !bytes.Equal(d.Data, large) {
		t.Fatalf("TryReceive() of the largest element = %v", err)
	}
	if err := d.Ack(bounded(t)); err != nil {
		t.Fatalf("Ack() = %v", err)
	}
	// The batch of the most elements, up to the last byte.
	q = New(c, "/q", MaxLength(20_000))
	_, ops, err := q.prepare(make([][]byte, 1))
	if err != nil {
		t.Fatal(err)
	}
	each := size(ops[0].(*zk.CreateRequest))
	many := make([][]byte, batchLimit/each)
	many[0] = make([]byte, batchLimit%each)
	if _, err := q.OfferAll(bounded(t), many); err != nil {
		t.Fatalf("OfferAll() of the largest batch = %v", err)
	}
	if n, err := q.Len(bounded(t)); n != len(many) || err != nil {
		t.Errorf("Len() = %d, %v, want %d", n, err, len(many))
	}
}

// Everybody who waits gets one element, and who gives up gets none.
func TestQueueTakeWaits(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	const waiters = 8
	ctx, cancel := context.WithCancelCause(bounded(t))
	gaveUp := errors.New("gave up")
	got, none := make(chan string, waiters), make(chan error, 2)
	var wg sync.WaitGroup
	for i := range 2 {
		q := New(c[i], "/q")
		for range waiters / 2 {
			wg.Go(func() {
				e, err := q.Take(bounded(t))
				if err != nil {
					t.Errorf("Take() = %v", err)
				}
				got <- string(e.Data)
			})
		}
		// Its own path, so that it never gets anything.
		go func() {
			_, err := New(c[i], "/other").Take(ctx)
			none <- err
		}()
	}
	for _, client := range c {
		until(t, "waiters", func() bool { return sessionOf(client).Watching(base(client).Chroot+"/q", session.OnChildren) != nil })
		until(t, "waiters", func() bool {
			return sessionOf(client).Watching(base(client).Chroot+"/other", session.OnChildren) != nil
		})
	}
	var want []string
	for i := range waiters {
		want = append(want, fmt.Sprint(i))
	}
	offer(t, New(c[0], "/q"), want...)
	wg.Wait()
	close(got)
	all := slices.Sorted(func(yield func(string) bool) {
		for s := range got {
			if !yield(s) {
				return
			}
		}
	})
	if !slices.Equal(all, want) {
		t.Errorf("taken: %q, want %q", all, want)
	}
	cancel(gaveUp)
	for range 2 {
		if err := <-none; !errors.Is(err, ErrEmpty) || !errors.Is(err, gaveUp) {
			t.Errorf("Take() = %v, want ErrEmpty and %v", err, gaveUp)
		}
	}
}

// An operator deletes the queue while consumers wait for it.
func TestQueueParentDeleted(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	q := New(c[0], "/app/q")
	taken, received := make(chan error, 1), make(chan error, 1)
	go func() { _, err := q.Take(bounded(t)); taken <- err }()
	go func() {
		d, err := New(c[1], "/app/q").Receive(bounded(t))
		if err == nil {
			err = d.Ack(bounded(t))
		}
		received <- err
	}()
	for range 20 {
		until(t, "queue deleted", func() bool { err := raw.Delete(q.path, -1); return err == nil })
	}
	offer(t, New(c[1], "/app/q"), "a", "b")
	if err := errors.Join(<-taken, <-received); err != nil {
		t.Error(err)
	}
	wantQueue(t, q)
}

// Producers and consumers of several clients: each element once, and a consumer
// sees those of one producer in their order.
func TestQueueManyProducersAndConsumers(t *testing.T) {
	t.Parallel()
	const producers, consumers, each = 3, 4, 25
	clients := crowd(t, 3)
	ctx, done := context.WithCancel(bounded(t))
	var made, used sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for i, c := range clients {
		q := New(c, "/q")
		for j := range producers {
			made.Go(func() {
				for k := 0; k < each; k += 2 {
					batch := [][]byte{fmt.Appendf(nil, "%d.%d %d", i, j, k)}
					if k+1 < each {
						batch = append(batch, fmt.Appendf(nil, "%d.%d %d", i, j, k+1))
					}
					if _, err := q.OfferAll(bounded(t), batch); err != nil {
						t.Errorf("OfferAll() = %v", err)
					}
				}
			})
		}
		for range consumers {
			used.Go(func() {
				last := map[string]int{}
				for {
					e, err := q.Take(ctx)
					if errors.Is(err, context.Canceled) {
						return // all have been seen; it may be in doubt about another's
					}
					if err != nil {
						t.Errorf("Take() = %v", err)
						return
					}
					var producer string
					var k int
					_, _ = fmt.Sscan(string(e.Data), &producer, &k)
					if k < last[producer] {
						t.Errorf("%s after %d", e.Data, last[producer])
					}
					last[producer] = k
					mu.Lock()
					seen[string(e.Data)]++
					if len(seen) == len(clients)*producers*each {
						done()
					}
					mu.Unlock()
				}
			})
		}
	}
	made.Wait()
	used.Wait()
	done()
	for e, n := range seen {
		if n != 1 {
			t.Errorf("%s was taken %d times", e, n)
		}
	}
	if want := len(clients) * producers * each; len(seen) != want {
		t.Errorf("%d elements were taken, want %d", len(seen), want)
	}
	wantQueue(t, New(clients[0], "/q"))
}

// Nobody can be asked: calls fail, those that wait go on.
func TestQueueUnavailable(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	q := New(r.Client, "/q")
	offer(t, q, "a")
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	until(t, "unavailable", func() bool { _, err := base(r.Client).Table(); return err != nil })
	_, offered := q.Offer(bounded(t), nil)
	_, _, polled := q.Poll(bounded(t))
	_, peeked := q.Peek(bounded(t))
	_, received := q.TryReceive(bounded(t))
	_, named := q.Names(bounded(t))
	for _, err := range []error{offered, polled, peeked, received, named} {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("error %v, want ErrUnavailable", err)
		}
	}
	taken := make(chan error, 1)
	go func() {
		_, err := q.Take(bounded(t))
		taken <- err
	}()
	select {
	case err := <-taken:
		t.Fatalf("Take() = %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond): // that nothing happens can only be waited for
	}
	r.Proxy.Restore()
	if err := <-taken; err != nil {
		t.Errorf("Take() = %v", err)
	}
}

// While another caller of this client tries to take an element, Poll does not know whether the
// element stays. It waits for the outcome instead of calling the queue empty.
func TestQueuePollWaitsForAnotherTrial(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := New(c, "/q")
	offer(t, q, "x")
	if _, err := q.Peek(bounded(t)); err != nil {
		t.Fatal(err)
	}
	known := q.elements(sessionOf(c))
	p, _, _ := known.pick()
	if p == nil {
		t.Fatal("pick() = nil, want the element")
	}
	type poll struct {
		e   Element
		ok  bool
		err error
	}
	polled := make(chan poll, 1)
	go func() {
		e, ok, err := q.Poll(bounded(t))
		polled <- poll{e, ok, err}
	}()
	select {
	case got := <-polled:
		t.Fatalf("Poll() = %q, %v, %v during another trial, want it to wait", got.e.Data, got.ok, got.err)
	case <-time.After(50 * time.Millisecond): // that nothing happens can only be waited for
	}
	known.free(*p, nil)
	if got := <-polled; got.err != nil || !got.ok || string(got.e.Data) != "x" {
		t.Errorf("Poll() = %q, %v, %v after a trial that failed, want the element", got.e.Data, got.ok, got.err)
	}
}

// A caller that gives up does not learn whether the queue is empty.
func TestQueuePollGivenUp(t *testing.T) {
	t.Parallel()
	q := New(crowd(t, 1)[0], "/q")
	offer(t, q, "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := q.Poll(ctx); ok || !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Poll() = %v, %v, want %v and %v", ok, err, driver.ErrUnavailable, context.Canceled)
	}
	wantQueue(t, q, "x")
}

// Another process takes an element while Peek reads it.
func TestQueuePeekPassesAnElementThatIsGone(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.direct, "a", "b")
	read := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(r.q.path+"/e-")))
	peeked := make(chan string, 1)
	go func() {
		e, err := r.q.Peek(bounded(t))
		if err != nil {
			t.Errorf("Peek() = %v", err)
		}
		peeked <- string(e.Data)
	}()
	await(t, "the read", read.Held())
	if e, err := r.direct.Remove(bounded(t)); err != nil || string(e.Data) != "a" {
		t.Fatalf("Remove() = %q, %v, want a", e.Data, err)
	}
	read.Release()
	if got := <-peeked; got != "b" {
		t.Errorf("Peek() = %q, want b", got)
	}
	wantQueue(t, r.q, "b")
}

// A process reads each element once, however often it picks.
func TestQueueReadsEachElementOnce(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	seen := r.Proxy.Count(r.q.path + "/e-")
	offer(t, r.direct, "a", "b", "c", "d", "e")
	for _, want := range []string{"a", "b", "c"} {
		if e, err := r.q.Remove(bounded(t)); err != nil || string(e.Data) != want {
			t.Errorf("Remove() = %q, %v, want %s", e.Data, err, want)
		}
	}
	for _, want := range []string{"d", "e"} {
		ack(t, receive(t, r.q, want, 1))
	}
	wantQueue(t, r.q)
	if n := seen.Seen().Requests[testserver.OpGetData]; n != 5 {
		t.Errorf("%d reads of 5 elements, want 5", n)
	}
}

// counted counts how often its end is waited for.
type counted struct {
	context.Context
	waits atomic.Int64
}

func (c *counted) Done() <-chan struct{} {
	c.waits.Add(1)
	return c.Context.Done()
}

// A caller that waits for an element sends nothing, and does not spin.
func TestQueueTakeIsQuietWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	seen := r.Proxy.Count(r.q.path)
	ctx := &counted{Context: bounded(t)}
	taken := make(chan error, 1)
	go func() { taken <- callTake(ctx, r.q) }()
	until(t, "the call waits", func() bool { return ctx.waits.Load() > 0 })
	select {
	case err := <-taken:
		t.Fatalf("Take() = %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond): // that nothing happens can only be waited for
	}
	if waits, requests := ctx.waits.Load(), seen.Seen().Total(); waits > 10 || requests > 10 {
		t.Errorf("Take() waited %d times and made %d requests, want about 1", waits, requests)
	}
	offer(t, r.direct, "a")
	if err := <-taken; err != nil {
		t.Errorf("Take() = %v", err)
	}
}

// Two callers of a client share its list. When one of them has read it again, the other picks again.
func TestQueueNewListWakesOtherCallers(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	q := New(c[0], "/q")
	offer(t, q, "x")
	wantQueue(t, q, "x")
	known := q.elements(sessionOf(c[0]))
	_, _, changed := known.pick()
	offer(t, New(c[1], "/q"), "y")
	if e, err := q.Peek(bounded(t)); err != nil || string(e.Data) != "y" {
		t.Fatalf("Peek() = %q, %v, want y", e.Data, err)
	}
	if !closed(changed) {
		t.Error("the new list has not woken a caller that picked from the old one")
	}
	// An element can be picked as soon as its lock has ended.
	p, _, _ := known.pick()
	if p == nil {
		t.Fatal("pick() = nil, want y")
	}
	ended := make(chan struct{})
	close(ended)
	known.mu.Lock()
	known.busy[p.Name] = ended
	known.mu.Unlock()
	if p, _, _ := known.pick(); p == nil {
		t.Error("pick() = nil after the lock has ended, want y")
	}
	known.free(*p, nil)
	wantQueue(t, q, "y")
}
