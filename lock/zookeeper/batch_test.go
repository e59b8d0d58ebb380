package zookeeper

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// Writes that share a Multi get each their own result, whatever the others'.
func TestBatchedWritesAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	const n = 200
	ids := make([]idem.KeyID, n)
	for i := range ids {
		ids[i] = newID()
	}
	held := map[idem.KeyID]bool{}
	for i := 0; i < n; i += 7 {
		if _, err := c[1].Locker().TryAcquire(bounded(t), request(ids[i])); err != nil {
			t.Fatal(err)
		}
		held[ids[i]] = true
	}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			lease, err := c[0].Locker().TryAcquire(bounded(t), request(id))
			if held[id] {
				if !errors.Is(err, idem.ErrLocked) {
					t.Errorf("TryAcquire() of a held lock = %v, want ErrLocked", err)
				}
				return
			}
			if err != nil {
				t.Errorf("TryAcquire() of a free lock = %v", err)
				return
			}
			if _, err := lease.Check(bounded(t)); err != nil {
				t.Errorf("Check() = %v", err)
			}
		})
	}
	wg.Wait()
}

// next takes what fits, in order, and never two places of one line.
func TestBatchTakesWhatMayShareAMulti(t *testing.T) {
	t.Parallel()
	place := func(line string) *write {
		return newWrite([]any{&zk.CreateRequest{Path: line + "/lock-x-", Flags: zk.FlagEphemeral | zk.FlagSequence}})
	}
	plain := func(path string) *write { return newWrite([]any{&zk.DeleteRequest{Path: path}}) }
	large := func() *write {
		return newWrite([]any{&zk.CreateRequest{Path: "/large", Data: bytes.Repeat([]byte("x"), maxBatchBytes)}})
	}
	a1, a2, b1, p, q, l := place("/a"), place("/a"), place("/b"), plain("/p"), plain("/a/q"), large()
	tests := map[string]struct {
		waiting []*write
		want    [][]*write
	}{
		"nothing":                {nil, [][]*write{nil}},
		"all of it":              {[]*write{a1, p, b1, q}, [][]*write{{a1, p, b1, q}}},
		"two places of a line":   {[]*write{a1, a2, p}, [][]*write{{a1, p}, {a2}}},
		"a large one goes alone": {[]*write{p, l, q}, [][]*write{{p}, {l}, {q}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &writer{waiting: append([]*write(nil), tt.waiting...)}
			for i, want := range tt.want {
				batch, more := w.next()
				if fmt.Sprint(batch) != fmt.Sprint(want) || more != (i < len(tt.want)-1) {
					t.Fatalf("next() no. %d = %v, %v, want %v", i+1, batch, more, want)
				}
			}
		})
	}
	t.Run("at most maxBatch", func(t *testing.T) {
		t.Parallel()
		w := &writer{}
		for range maxBatch + 1 {
			w.waiting = append(w.waiting, plain("/p"))
		}
		first, more := w.next()
		second, no := w.next()
		if len(first) != maxBatch || !more || len(second) != 1 || no {
			t.Errorf("next() took %d, %v, then %d, %v", len(first), more, len(second), no)
		}
	})
}

// A reply that is lost leaves all writes of the Multi in doubt; each settles for
// itself.
func TestBatchWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 20*time.Second)
	var wg sync.WaitGroup
	for range 5 {
		r.proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.Root+"/")))
		for range 40 {
			wg.Go(func() {
				lease, err := r.l.TryAcquire(bounded(t), request(newID()))
				if err != nil && !errors.Is(err, idem.ErrUnavailable) {
					t.Errorf("TryAcquire() = %v", err)
				}
				if err != nil {
					return
				}
				if _, err := lease.Check(bounded(t)); err != nil {
					t.Errorf("Check() = %v", err)
				}
				if err := lease.Release(bounded(t)); err != nil {
					t.Errorf("Release() = %v", err)
				}
			})
		}
		wg.Wait()
		r.idle(r.c)
	}
	shards, _, err := r.raw.Children(r.cfg.Chroot + r.cfg.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range shards {
		if left, _, err := r.raw.Children(r.cfg.Chroot + r.cfg.Root + "/" + shard); err != nil || len(left) > 0 {
			t.Errorf("locks left below %s: %v, %v", shard, left, err)
		}
	}
}
