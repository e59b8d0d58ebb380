package session

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

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
