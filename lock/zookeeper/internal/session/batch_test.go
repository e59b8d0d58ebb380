package session

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
)

// next takes what fits, in order, and numbers the requests of each group.
func TestBatchTakesWhatMayShareAMulti(t *testing.T) {
	t.Parallel()
	numbers := make(map[*write]int)
	grouped := func(group string) (wr *write) {
		wr = newWrite(Request{Group: group, Number: func(n int) { numbers[wr] = n }})
		return wr
	}
	plain := func(path string) *write { return newWrite(Request{Ops: []any{&zk.DeleteRequest{Path: path}}}) }
	large := func() *write {
		return newWrite(Request{Ops: []any{&zk.CreateRequest{Path: "/large", Data: bytes.Repeat([]byte("x"), maxBatchBytes)}}})
	}
	a1, a2, a3, b1, p, q, l := grouped("a"), grouped("a"), grouped("a"), grouped("b"), plain("/p"), plain("/a/q"), large()
	tests := map[string]struct {
		waiting []*write
		want    [][]*write
	}{
		"nothing":                {nil, [][]*write{nil}},
		"all of it":              {[]*write{a1, p, b1, a2, q}, [][]*write{{a1, p, b1, a2, q}}},
		"a large one goes alone": {[]*write{p, l, q, a3}, [][]*write{{p}, {l}, {q, a3}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &batcher{waiting: append([]*write(nil), tt.waiting...)}
			for i, want := range tt.want {
				batch := w.next()
				more := len(w.waiting) > 0
				if fmt.Sprint(batch) != fmt.Sprint(want) || more != (i < len(tt.want)-1) {
					t.Fatalf("next() no. %d = %v, %v, want %v", i+1, batch, more, want)
				}
			}
		})
	}
	if want := map[*write]int{a1: 0, b1: 0, a2: 1, a3: 0}; !maps.Equal(numbers, want) {
		t.Errorf("next() gave the numbers %v, want %v", numbers, want)
	}
	t.Run("at most MaxBatch", func(t *testing.T) {
		t.Parallel()
		w := &batcher{}
		for range MaxBatch + 1 {
			w.waiting = append(w.waiting, plain("/p"))
		}
		first := w.next()
		second := w.next()
		if len(first) != MaxBatch || len(second) != 1 || len(w.waiting) > 0 {
			t.Errorf("next() took %d, then %d, and left %d", len(first), len(second), len(w.waiting))
		}
	})
}

// Two Multis are under way at most, unless the waiting writes fill one. Later writes
// leave together.
func TestWritesLeaveTogether(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		underWay, waiting int
		want              []int // writes in the Multis that leave at once
	}{
		"nothing under way":       {0, 1, []int{1}},
		"one under way":           {1, 3, []int{3}},
		"two under way":           {usualMultis, 3, nil},
		"two and a full one":      {usualMultis, MaxBatch, []int{MaxBatch}},
		"as many as there may be": {mostMultis, MaxBatch, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []int
				answer := make(chan struct{})
				b := &batcher{status: &status{over: make(chan struct{})}}
				b.send = func(ops ...any) Result {
					mu.Lock()
					sent = append(sent, len(ops))
					mu.Unlock()
					<-answer
					return Result{Outcome: Unknown}
				}
				b.underWay = tt.underWay
				for range tt.waiting {
					wr := newWrite(Request{Ops: []any{&zk.DeleteRequest{Path: "/p"}}})
					b.waiting = append(b.waiting, wr)
				}
				b.mu.Lock()
				b.sendMore()
				b.mu.Unlock()
				synctest.Wait()
				mu.Lock()
				if !slices.Equal(sent, tt.want) {
					t.Errorf("Multis of %v writes left, want %v", sent, tt.want)
				}
				mu.Unlock()
				b.mu.Lock()
				b.underWay -= tt.underWay
				b.sendMore()
				b.mu.Unlock()
				close(answer)
				synctest.Wait()
				b.mu.Lock()
				defer b.mu.Unlock()
				if n := len(b.waiting); n > 0 {
					t.Errorf("%d writes wait after the Multis under way were answered", n)
				}
			})
		})
	}
}

// A lazy write leaves with the next write that is not lazy, in a full Multi, or after a moment.
func TestLazyWritesWaitForOthers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lazy, others int // writes, one kind after the other
		pause        time.Duration
		want         []int // writes in the Multis that have left after the pause
	}{
		"alone":              {1, 0, lazyWait - 1, nil},
		"for long":           {1, 0, lazyWait, []int{1}},
		"many":               {3, 0, lazyWait, []int{3}},
		"as many as fit":     {MaxBatch, 0, 0, []int{MaxBatch}},
		"one more than fits": {MaxBatch + 1, 0, lazyWait - 1, []int{MaxBatch}},
		"with another write": {2, 1, 0, []int{3}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []int
				b := &batcher{status: &status{over: make(chan struct{})}}
				b.send = func(ops ...any) Result {
					mu.Lock()
					defer mu.Unlock()
					sent = append(sent, len(ops))
					return Result{Outcome: Unknown}
				}
				var callers sync.WaitGroup
				write := func(lazy bool) {
					callers.Go(func() { b.Do(Request{Ops: []any{&zk.DeleteRequest{Path: "/p"}}, Lazy: lazy}) })
				}
				for range 2 { // the timer serves again
					sent = nil
					for range tt.lazy {
						write(true)
					}
					synctest.Wait()
					for range tt.others {
						write(false)
					}
					time.Sleep(tt.pause)
					synctest.Wait()
					mu.Lock()
					if !slices.Equal(sent, tt.want) {
						t.Errorf("Multis of %v writes left, want %v", sent, tt.want)
					}
					mu.Unlock()
					callers.Wait() // after a moment all have left
				}
			})
		})
	}
}

// Each write gets its outcome from the answer or from the end of the session, whichever
// comes first.
func TestWritesEndWithTheirSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &status{over: make(chan struct{})}
		b := &batcher{status: st, underWay: usualMultis - 1}
		hold := make(chan struct{})
		b.send = func(ops ...any) Result {
			if len(ops) > 0 {
				<-hold // no answer
			}
			return Result{Outcome: Applied, Created: make([]string, len(ops))}
		}
		if r := b.Write(); r.Outcome != Applied {
			t.Errorf("Write() = %+v, want it applied", r)
		}
		unanswered, waiting := make(chan Result, 1), make(chan Result, 1)
		go func() { unanswered <- b.Write(&zk.DeleteRequest{Path: "/p"}) }()
		synctest.Wait()
		go func() { waiting <- b.Write() }()
		synctest.Wait()
		st.mu.Lock()
		st.why = ErrExpired
		st.mu.Unlock()
		close(st.over)
		for _, r := range []Result{<-unanswered, <-waiting, b.Write(), b.Batch(Request{})[0]} {
			if r.Outcome != Ended || !errors.Is(r.Err, ErrExpired) {
				t.Errorf("Write() = %+v at the end of the session, want that it is over", r)
			}
		}
		close(hold)
	})
}

// An answer that came before the end of the session counts, even if its caller looks later.
func TestAnswerBeforeTheEndOfTheSessionCounts(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	close(over)
	b := &batcher{status: &status{over: over, why: ErrExpired}}
	for range 100 {
		wr := newWrite(Request{})
		wr.answer <- Result{Outcome: Applied}
		if r := b.outcome(wr); r.Outcome != Applied {
			t.Fatalf("outcome() = %+v, want it applied", r)
		}
	}
}
