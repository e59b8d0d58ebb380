package queue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// call is a call of a queue, without its result.
type call func(ctx context.Context, q *Queue) error

var (
	callOffer      call = func(ctx context.Context, q *Queue) error { _, err := q.Offer(ctx, []byte("b")); return err }
	callOfferNamed call = func(ctx context.Context, q *Queue) error { _, err := q.OfferNamed(ctx, "n", nil); return err }
	callNames      call = func(ctx context.Context, q *Queue) error { _, err := q.Names(ctx); return err }
	callForget     call = func(ctx context.Context, q *Queue) error { return q.ForgetName(ctx, "n") }
	callLen        call = func(ctx context.Context, q *Queue) error { _, err := q.Len(ctx); return err }
	callPeek       call = func(ctx context.Context, q *Queue) error { _, err := q.Peek(ctx); return err }
	callPoll       call = func(ctx context.Context, q *Queue) error { _, _, err := q.Poll(ctx); return err }
	callTake       call = func(ctx context.Context, q *Queue) error { _, err := q.Take(ctx); return err }
	callReceive    call = func(ctx context.Context, q *Queue) error { _, err := q.Receive(ctx); return err }
	callTryReceive call = func(ctx context.Context, q *Queue) error { _, err := q.TryReceive(ctx); return err }
)

// element is the path of the only element.
func (r queueRig) element() string {
	r.Helper()
	names, _, err := r.Raw.Children(r.q.path)
	if err != nil || len(names) != 1 {
		r.Fatalf("Children() = %v, %v; want one element", names, err)
	}
	return r.q.path + "/" + names[0]
}

// allow limits what every client may do with a znode.
func (r queueRig) allow(path string, perms int32) {
	r.Helper()
	if _, err := r.Raw.SetACL(path, zk.WorldACL(perms|zk.PermAdmin), -1); err != nil {
		r.Fatalf("SetACL(%s) = %v", path, err)
	}
}

// A call that the servers refuse says so at once. It does not call the queue empty, and does not
// claim to have done anything. The element is there for the calls that are allowed again.
func TestQueueWithoutARight(t *testing.T) {
	t.Parallel()
	queue := func(r queueRig) string { return r.q.path }
	names := func(r queueRig) string { return namesOf(r.q.path) }
	for name, tt := range map[string]struct {
		path    func(queueRig) string
		missing int32
		calls   map[string]call
	}{
		"to read the queue": {queue, zk.PermRead, map[string]call{
			"Offer": callOffer, "Len": callLen, "Peek": callPeek, "Poll": callPoll, "Take": callTake,
			"Receive": callReceive, "TryReceive": callTryReceive,
		}},
		"to add elements":    {queue, zk.PermCreate, map[string]call{"Offer": callOffer, "OfferNamed": callOfferNamed}},
		"to remove elements": {queue, zk.PermDelete, map[string]call{"Poll": callPoll, "Take": callTake}},
		"to read an element": {queueRig.element, zk.PermRead, map[string]call{
			"Peek": callPeek, "Poll": callPoll, "Take": callTake, "Receive": callReceive, "TryReceive": callTryReceive,
		}},
		"to lock an element": {queueRig.element, zk.PermCreate, map[string]call{"Receive": callReceive, "TryReceive": callTryReceive}},
		"to read the names":  {names, zk.PermRead, map[string]call{"Names": callNames}},
		"to remove names":    {names, zk.PermDelete, map[string]call{"ForgetName": callForget}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newQueueRig(t)
			r.TB = t
			offerNamed(t, r.direct, "known", "a", true)
			path := tt.path(r)
			r.allow(path, zk.PermAll&^tt.missing)
			for name, call := range tt.calls {
				err := call(bounded(t), r.q)
				if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, zk.ErrNoAuth) || errors.As(err, new(*InDoubtError)) {
					t.Errorf("%s() = %v, want %v and %v", name, err, driver.ErrUnavailable, zk.ErrNoAuth)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s() = %v, want it to fail at once", name, err)
				}
			}
			r.allow(path, zk.PermAll)
			wantNames(t, r.q, "known")
			ack(t, receive(t, r.q, "a", 1))
			wantQueue(t, r.direct)
		})
	}
}

// The lock of an element whose delete is refused is deleted when that is allowed again. It is not tried all
// the time until then.
func TestQueueReleaseThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.direct, "a")
	d := receive(t, r.q, "a", 1)
	path := r.element()
	r.allow(path, zk.PermAll&^zk.PermDelete)
	requests := r.Proxy.Count(path)
	d.ReleaseInBackground()
	tries := func(n int) time.Time {
		until(t, "a try", func() bool { return requests.Seen().Requests[testserver.OpMulti] >= n })
		return time.Now()
	}
	if first, second := tries(1), tries(2); second.Sub(first) < time.Second/2 {
		t.Errorf("the second try came %v after the first one, want about a second", second.Sub(first))
	}
	r.allow(path, zk.PermAll)
	ack(t, receive(t, r.direct, "a", 2))
}

// The caller leaves while a read is on its way. It does not learn whether the queue is empty, full
// or knows a name.
func TestQueueReadsGivenUp(t *testing.T) {
	t.Parallel()
	const data, list = testserver.OpGetData, testserver.OpGetChildren2
	for name, tt := range map[string]struct {
		op   int32
		part string // of the path, below the queue's parent
		call call
	}{
		"length":             {data, "/q", callLen},
		"list to poll":       {list, "/q", callPoll},
		"list to peek":       {list, "/q", callPeek},
		"element to peek":    {data, "/q/e-", callPeek},
		"room for an offer":  {data, "/q", callOffer},
		"name to offer":      {data, "/q-names/n", callOfferNamed},
		"number of names":    {data, "/q-names", callNames},
		"list of names":      {list, "/q-names", callNames},
		"removal of a name":  {testserver.OpMulti, "/q-names/n", callForget},
		"element to receive": {data, "/q/e-", callTryReceive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newQueueRig(t)
			offerNamed(t, r.direct, "known", "a", true)
			read := r.Proxy.HoldNext(testserver.All(testserver.Op(tt.op), testserver.Contains(clientOf(r.Client).Chroot+tt.part)))
			ctx, leave := context.WithCancel(bounded(t))
			go func() { <-read.Held(); leave() }()
			err := tt.call(ctx, r.q)
			if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want %v and %v", err, driver.ErrUnavailable, context.Canceled)
			}
			read.Release()
			recipetest.Idle(t, r.Client)
			wantQueue(t, r.q, "a")
		})
	}
}

// A session has as many locks as it may have. It can still acknowledge, and then gets another element.
func TestQueueReceiveBeyondTheLocksOfASession(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.MaxLocksPerSession = 2
	q, other := MustNew(open(t, cfg), "/q"), MustNew(open(t, cfg), "/q")
	offer(t, other, "a", "b", "c")
	a, b := receive(t, q, "a", 1), receive(t, q, "b", 1)
	d, err := q.TryReceive(bounded(t))
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryReceive() = %v, %v, want %v at once", d, err, driver.ErrUnavailable)
	}
	ack(t, a)
	c := receive(t, q, "c", 1)
	recipetest.Release(t, b)
	ack(t, receive(t, other, "b", 2))
	ack(t, c)
}
