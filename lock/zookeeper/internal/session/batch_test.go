package session

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	data := newWrite(Request{Ops: []any{&zk.SetDataRequest{Path: "/large", Data: make([]byte, maxBatchBytes)}}})
	a1, a2, a3, b1, p, q, l := grouped("a"), grouped("a"), grouped("a"), grouped("b"), plain("/p"), plain("/a/q"), large()
	tests := map[string]struct {
		waiting []*write
		want    [][]*write
	}{
		"nothing":                {nil, [][]*write{nil}},
		"all of it":              {[]*write{a1, p, b1, a2, q}, [][]*write{{a1, p, b1, a2, q}}},
		"a large one goes alone": {[]*write{p, l, q, a3}, [][]*write{{p}, {l}, {q, a3}}},
		"so does large data":     {[]*write{p, data, q}, [][]*write{{p}, {data}, {q}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := &Writes{waiting: append([]*write(nil), tt.waiting...)}
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
		w := &Writes{}
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
				b := &Writes{status: &Status{over: make(chan struct{})}}
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
				b := &Writes{status: &Status{over: make(chan struct{})}}
				b.send = func(ops ...any) Result {
					mu.Lock()
					defer mu.Unlock()
					sent = append(sent, len(ops))
					return Result{Outcome: Unknown}
				}
				var callers sync.WaitGroup
				write := func(lazy bool) {
					callers.Go(func() { b.DoRequest(Request{Ops: []any{&zk.DeleteRequest{Path: "/p"}}, Lazy: lazy}) })
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
		st := &Status{over: make(chan struct{})}
		b := &Writes{status: st, underWay: usualMultis - 1}
		hold := make(chan struct{})
		b.send = func(ops ...any) Result {
			if len(ops) > 0 {
				<-hold // no answer
			}
			return Result{Outcome: Applied, Created: make([]string, len(ops))}
		}
		if r := b.Do(); r.Outcome != Applied {
			t.Errorf("Write() = %+v, want it applied", r)
		}
		unanswered, waiting := make(chan Result, 1), make(chan Result, 1)
		go func() { unanswered <- b.Do(&zk.DeleteRequest{Path: "/p"}) }()
		synctest.Wait()
		go func() { waiting <- b.Do() }()
		synctest.Wait()
		st.mu.Lock()
		st.why = ErrExpired
		st.mu.Unlock()
		close(st.over)
		for _, r := range []Result{<-unanswered, <-waiting, b.Do(), b.together(Request{})[0]} {
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
	b := &Writes{status: &Status{over: over, why: ErrExpired}}
	for range 100 {
		wr := newWrite(Request{})
		wr.answer <- Result{Outcome: Applied}
		if r := b.outcome(wr); r.Outcome != Applied {
			t.Fatalf("outcome() = %+v, want it applied", r)
		}
	}
}

// Each write of a Multi has the paths of its own operations.
func TestEachWriteGetsItsOwnPaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &Writes{status: &Status{over: make(chan struct{})}}
		b.send = func(ops ...any) Result {
			r := Result{Outcome: Applied}
			for _, op := range ops {
				r.Created = append(r.Created, pathOf(op)+"-made")
			}
			return r
		}
		var reqs []Request
		for i := range 3 {
			req := Request{}
			for j := range i + 1 {
				req.Ops = append(req.Ops, &zk.CreateRequest{Path: fmt.Sprintf("/%d-%d", i, j)})
			}
			reqs = append(reqs, req)
		}
		for i, r := range b.together(reqs...) {
			var want []string
			for j := range i + 1 {
				want = append(want, fmt.Sprintf("/%d-%d-made", i, j))
			}
			if !slices.Equal(r.Created, want) {
				t.Errorf("write %d has created %q, want %q", i, r.Created, want)
			}
		}
	})
}

// A write that was refused because of one in front of it is judged again after that one has its
// answer, and gets an answer as well.
func TestDependentWriteIsSentAfterTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []string
		first := make(chan struct{})
		b := &Writes{status: &Status{over: make(chan struct{})}}
		b.send = func(ops ...any) Result {
			mu.Lock()
			var paths []string
			for _, op := range ops {
				paths = append(paths, pathOf(op))
			}
			text := strings.Join(paths, " ")
			sent = append(sent, text)
			mu.Unlock()
			if len(ops) == 2 {
				return Result{Outcome: Refused, Op: 1, Err: zk.ErrNodeExists}
			}
			if text == "/a" {
				<-first
			}
			return Result{Outcome: Applied, Created: make([]string, len(ops))}
		}
		results := make(chan []Result, 1)
		go func() {
			results <- b.together(Request{Ops: []any{&zk.CreateRequest{Path: "/a"}}}, Request{Ops: []any{&zk.DeleteRequest{Path: "/a/b"}}})
		}()
		want := []string{"/a /a/b", "/a"}
		for range 2 {
			synctest.Wait()
			mu.Lock()
			if !slices.Equal(sent, want) {
				t.Errorf("sent %q, want %q", sent, want)
			}
			mu.Unlock()
			if len(want) == 2 {
				want = append(want, "/a/b")
				close(first)
			}
		}
		select {
		case got := <-results:
			for _, r := range got {
				if r.Outcome != Applied {
					t.Errorf("together() = %+v, want both applied", got)
				}
			}
		default:
			t.Error("a write got no answer")
			close(b.status.over)
		}
	})
}

// If the pin itself is refused, no write of the session can succeed, and none is sent again.
func TestRefusedPinAnswersTheWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		b := &Writes{status: &Status{over: make(chan struct{})}}
		b.send = func(...any) Result {
			sent++
			return Result{Outcome: Refused, Op: -1, Err: zk.ErrNoAuth}
		}
		req := Request{Ops: []any{&zk.DeleteRequest{Path: "/p"}}}
		for _, r := range b.together(req, req) {
			if r.Outcome != Refused || r.Op != -1 || sent != 1 {
				t.Errorf("together() = %+v after %d Multis, want the refusal of the pin after one", r, sent)
			}
		}
	})
}
