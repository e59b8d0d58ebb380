package queue

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
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
	a, b := MustNew(c[0], "/app/q"), MustNew(c[1], "/app/q")
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
	q := MustNew(c, "/q")
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
	q := MustNew(c, "/q", WithMaxLength(3), nil)
	offer(t, q, "a", strings.Repeat("b", 10))
	for _, tt := range []struct {
		q    *Queue
		data [][]byte
		want error
	}{
		{q, [][]byte{nil, make([]byte, elementLimit+1)}, ErrElementTooLarge},
		{q, [][]byte{nil, nil}, ErrFull},
		{MustNew(c, "/q"), [][]byte{make([]byte, 512<<10), make([]byte, 500<<10)}, ErrBatchTooLarge},
		{MustNew(c, "/q", WithMaxLength(20_000)), make([][]byte, 12_000), ErrBatchTooLarge},
	} {
		if ids, err := tt.q.OfferAll(bounded(t), tt.data); !errors.Is(err, tt.want) || ids != nil {
			t.Errorf("OfferAll(%d elements) = %d, %v, want %v", len(tt.data), len(ids), err, tt.want)
		}
	}
	wantQueue(t, q, "a", strings.Repeat("b", 10))
	for _, q := range []*Queue{
		MustNew(c, "/q", WithMaxLength(1)), MustNew(c, "/q", WithMaxLength(lengthLimit)),
	} {
		if _, err := q.Len(bounded(t)); err != nil {
			t.Errorf("Len() = %v at the limit of an option", err)
		}
	}
}

// Wrong wiring is an error of New, and a panic of MustNew.
func TestNewRefusesWrongWiring(t *testing.T) {
	t.Parallel()
	c := &zookeeper.Client{}
	var none *zookeeper.Client
	for name, tt := range map[string]struct {
		in   zookeeper.Space
		path string
		opt  Option
	}{
		"a relative path":              {c, "q", nil},
		"no path":                      {c, "", nil},
		"a namespace that is no path":  {c.Namespace("app"), "/q", nil},
		"no length":                    {c, "/q", WithMaxLength(0)},
		"a length that nobody lists":   {c, "/q", WithMaxLength(lengthLimit + 1)},
		"no client":                    {nil, "/q", nil},
		"a client that is nil":         {none, "/q", nil},
		"a namespace without a client": {none.Namespace("/app"), "/q", nil},
	} {
		if q, err := New(tt.in, tt.path, tt.opt); err == nil || q != nil {
			t.Errorf("New() with %s = %v, %v, want an error", name, q, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("MustNew() with %s returned", name)
				}
			}()
			MustNew(tt.in, tt.path, tt.opt)
		}()
	}
}

// The largest of everything that is allowed gets through, both ways.
func TestQueueLargest(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := MustNew(c, "/q")
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
	q = MustNew(c, "/q", WithMaxLength(20_000))
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

// An operator deletes the queue while consumers wait for it.
func TestQueueParentDeleted(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	q := MustNew(c[0], "/app/q")
	taken, received := make(chan error, 1), make(chan error, 1)
	go func() { _, err := q.Take(bounded(t)); taken <- err }()
	go func() {
		d, err := MustNew(c[1], "/app/q").Receive(bounded(t))
		if err == nil {
			err = d.Ack(bounded(t))
		}
		received <- err
	}()
	for range 20 {
		until(t, "queue deleted", func() bool { err := raw.Delete(q.path, -1); return err == nil })
	}
	offer(t, MustNew(c[1], "/app/q"), "a", "b")
	if err := errors.Join(<-taken, <-received); err != nil {
		t.Error(err)
	}
	wantQueue(t, q)
}

// Nobody can be asked: calls fail, those that wait go on.
func TestQueueUnavailable(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	q := MustNew(r.Client, "/q")
	offer(t, q, "a")
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	until(t, "unavailable", func() bool { _, err := clientOf(r.Client).Table(); return err != nil })
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
