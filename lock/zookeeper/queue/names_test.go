package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

func offerNamed(t testing.TB, q *Queue, name, data string, want bool) {
	t.Helper()
	offered, err := q.OfferNamed(bounded(t), name, []byte(data))
	if err != nil || offered != want {
		t.Errorf("OfferNamed(%q) = %v, %v; want %v", name, offered, err, want)
	}
}

func wantNames(t testing.TB, q *Queue, want ...string) {
	t.Helper()
	got, err := q.Names(bounded(t))
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Names() = %q, %v; want %q", got, err, want)
	}
}

func TestQueueOffersAnElementOncePerName(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	a, b := MustNew(c[0], "/app/q"), MustNew(c[1], "/app/q")
	wantNames(t, a)
	offerNamed(t, a, "n-1", "one", true)
	offerNamed(t, b, "n-1", "again", false)
	offerNamed(t, b, "n-2", "two", true)
	wantNames(t, a, "n-1", "n-2")
	wantQueue(t, a, "one", "two")
	offerNamed(t, a, "n-1", "taken, and still known", false)
	if err := b.ForgetName(bounded(t), "n-1"); err != nil {
		t.Errorf("ForgetName() = %v", err)
	}
	if err := b.ForgetName(bounded(t), "n-1"); err != nil {
		t.Errorf("ForgetName() of an unknown name = %v, want nil", err)
	}
	wantNames(t, a, "n-2")
	offerNamed(t, a, "n-1", "three", true)
	wantQueue(t, b, "three")
}

func TestQueueNamesAreChecked(t *testing.T) {
	t.Parallel()
	q := MustNew(crowd(t, 1)[0], "/app/q")
	for _, name := range []string{"", "a/b", ".", "..", "a b", "ä", strings.Repeat("n", maxName+1)} {
		if _, err := q.OfferNamed(bounded(t), name, nil); err == nil {
			t.Errorf("OfferNamed(%q) = nil, want an error", name)
		}
		if err := q.ForgetName(bounded(t), name); err == nil {
			t.Errorf("ForgetName(%q) = nil, want an error", name)
		}
	}
	offerNamed(t, q, strings.Repeat("n", maxName), "longest", true)
	offerNamed(t, q, "!~", "first and last", true)
	wantQueue(t, q, "longest", "first and last")
}

// More names than a client can list are not taken: it would lose its connection
// over them, and with it all locks.
func TestQueueKnowsNoMoreNamesThanCanBeListed(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := MustNew(c, "/app/q")
	offerNamed(t, q, "n", "x", true)
	s := sessionOf(c)
	parent := namesOf(q.path)
	create := func(from, to int) {
		for from < to {
			var ops []any
			for ; len(ops) < 1000 && from < to; from++ {
				ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/%d", parent, from), Acl: zk.WorldACL(zk.PermAll)})
			}
			if r := s.Session.Writes.Do(ops...); r.Outcome != session.Applied {
				t.Fatal(r.Err)
			}
		}
	}
	create(1, maxNames)
	if _, err := q.OfferNamed(bounded(t), "one-more", nil); !errors.Is(err, ErrFull) {
		t.Errorf("OfferNamed() beyond %d names = %v, want ErrFull", maxNames, err)
	}
	if names, err := q.Names(bounded(t)); len(names) != maxNames || err != nil {
		t.Errorf("Names() = %d, %v; want all %d", len(names), err, maxNames)
	}
	if err := q.ForgetName(bounded(t), "7"); err != nil {
		t.Fatal(err)
	}
	offerNamed(t, q, "one-more", "x", true)
	create(maxNames, 2*maxNames+1)
	if names, err := q.Names(bounded(t)); !errors.Is(err, ErrFull) || names != nil {
		t.Errorf("Names() of more than %d = %d, %v; want ErrFull", 2*maxNames, len(names), err)
	}
}

func TestQueueOfManyOffersUnderANameOneStands(t *testing.T) {
	t.Parallel()
	c := crowd(t, 3)
	var offered atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		q := MustNew(c[i%len(c)], "/app/q")
		wg.Go(func() {
			ok, err := q.OfferNamed(bounded(t), "n", []byte("x"))
			if err != nil {
				t.Errorf("OfferNamed() = %v", err)
			}
			if ok {
				offered.Add(1)
			}
		})
	}
	wg.Wait()
	if n := offered.Load(); n != 1 {
		t.Errorf("%d calls appended an element, want 1", n)
	}
	wantQueue(t, MustNew(c[0], "/app/q"), "x")
}
