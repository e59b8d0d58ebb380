package session

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

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
