package session

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// rounds plays a batch through sortOut: the writes of culprits are refused whatever
// they are sent with. It returns how many Multis were sent, how many one after the
// other, and in which order the writes were told.
func rounds(t *testing.T, batch []*write, culprits map[*write]bool) (multis, deep int, told []*write) {
	t.Helper()
	i := slices.IndexFunc(batch, func(wr *write) bool { return culprits[wr] })
	if i < 0 {
		return 1, 1, batch
	}
	so := sortOut(slices.Clone(batch), i, Result{Outcome: Refused, Err: zk.ErrNodeExists})
	told = so.told
	if len(so.pieces) > MaxBatch {
		t.Errorf("%d writes are sent again in %d Multis at once", len(batch), len(so.pieces))
	}
	multis = 1
	below := 0
	for _, piece := range so.pieces {
		m, d, more := rounds(t, piece, culprits)
		multis, below, told = multis+m, max(below, d), append(told, more...)
	}
	if so.last != nil {
		m, d, more := rounds(t, []*write{so.last}, culprits)
		multis, below, told = multis+m, below+d, append(told, more...)
	}
	return multis, 1 + below, told
}

// However many of a batch are refused, the others wait for few Multis one after the
// other, and every write is told once.
func TestRefusedBatchIsSortedOutInFewRounds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		culprit func(i int) bool
		multis  int
		deep    int
	}{
		"nothing":    {func(int) bool { return false }, 1, 1},
		"the first":  {func(i int) bool { return i == 0 }, MaxBatch, 2},
		"one inside": {func(i int) bool { return i == 70 }, 3, 2},
		"the last":   {func(i int) bool { return i == MaxBatch-1 }, 2, 2},
		"half":       {func(i int) bool { return i%2 == 0 }, MaxBatch, 2},
		"half, late": {func(i int) bool { return i >= MaxBatch/2 }, 200, 5},
		"all":        {func(int) bool { return true }, MaxBatch, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			batch, culprits := locks(MaxBatch, tt.culprit)
			multis, deep, told := rounds(t, batch, culprits)
			if multis > tt.multis || deep > tt.deep {
				t.Errorf("took %d Multis, %d one after the other; want %d and %d at most", multis, deep, tt.multis, tt.deep)
			}
			wantToldOnce(t, batch, told)
		})
	}
	t.Run("any", func(t *testing.T) {
		t.Parallel()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			n, share := 1+rng.IntN(MaxBatch), rng.Float64()
			batch, culprits := locks(n, func(int) bool { return rng.Float64() < share })
			multis, deep, told := rounds(t, batch, culprits)
			if most := 1 + bits.Len(uint(n)); deep > most || multis > 2*n {
				t.Errorf("%d writes with %d culprits took %d Multis, %d one after the other", n, len(culprits), multis, deep)
			}
			wantToldOnce(t, batch, told)
		}
	})
}

// locks are creates of n locks with a parent each.
func locks(n int, culprit func(i int) bool) (batch []*write, culprits map[*write]bool) {
	culprits = map[*write]bool{}
	for i := range n {
		wr := newWrite(Request{Ops: []any{&zk.CreateRequest{Path: fmt.Sprintf("/lock/%d/x", i), Flags: zk.FlagEphemeral}}})
		batch = append(batch, wr)
		if culprit(i) {
			culprits[wr] = true
		}
	}
	return batch, culprits
}

func wantToldOnce(t *testing.T, batch, told []*write) {
	t.Helper()
	times := map[*write]int{}
	for _, wr := range told {
		times[wr]++
	}
	for i, wr := range batch {
		if times[wr] != 1 {
			t.Errorf("write %d of %d was told %d times", i, len(batch), times[wr])
		}
	}
}

// A write of several operations is judged as one, wherever it is in a Multi, and learns which of its
// own operations was refused.
func TestWritesOfSeveralOperationsShareAMulti(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := func(i int) string { return fmt.Sprintf("%s/lock-%d", r.k.cfg.Members, i) }
	for i := range 4 {
		r.create(t, at(i), zk.FlagPersistent)
	}
	r.create(t, at(2)+"/mine", zk.FlagPersistent)
	del := func(path string) any { return &zk.DeleteRequest{Path: path, Version: -1} }
	again := func(path string) any { return &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)} }
	results := r.s.Writes.together(
		Request{Ops: []any{del(at(0)), again(at(0))}},
		Request{Ops: []any{del(at(1)), again(at(1)), del(at(0) + "/none")}},
		Request{Ops: []any{del(at(2) + "/mine"), again(at(2) + "/mine"), del(at(2))}},
		Request{Ops: []any{del(at(3)), again(at(3))}},
	)
	for i, want := range []Result{{Outcome: Applied}, {Outcome: Refused, Op: 2, Err: zk.ErrNoNode}, {Outcome: Refused, Op: 2, Err: zk.ErrNotEmpty}, {Outcome: Applied}} {
		got := results[i]
		if got.Outcome != want.Outcome || got.Op != want.Op || !errors.Is(got.Err, want.Err) {
			t.Errorf("write %d: %+v, want %+v", i, got, want)
		}
		if want.Outcome == Applied && (len(got.Created) != 2 || got.Created[1] != at(i)) {
			t.Errorf("write %d created %q, want its own path", i, got.Created)
		}
	}
}

// A write is not refused for what another one would have done that shared its Multi
// and was never applied.
func TestNoRefusalForWhatWasNeverApplied(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]func(path string) any{
		"set":    func(path string) any { return &zk.SetDataRequest{Path: path, Data: []byte("new"), Version: 0} },
		"delete": func(path string) any { return &zk.DeleteRequest{Path: path, Version: 0} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			beside := rawConn(t, testserver.SharedZooKeeper(t))
			path := r.k.cfg.Members + "/both"
			create(t, beside, path, 0)
			about := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(path))

			// While the Multis that there may be are under way, the two writes meet.
			b := r.s.Writes
			var holds []*testserver.Hold
			var wg sync.WaitGroup
			for i := range usualMultis {
				other := fmt.Sprintf("%s/other-%d", r.k.cfg.Members, i)
				h := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(other)))
				holds = append(holds, h)
				wg.Go(func() { r.s.Writes.Do(&zk.CreateRequest{Path: other, Acl: zk.WorldACL(zk.PermAll)}) })
				await(t, "a write under way", h.Held())
			}
			answers := make(chan Result, 2)
			for i := range 2 {
				wg.Go(func() { answers <- r.s.Writes.Do(op(path)) })
				until(t, "the write to wait", func() bool {
					b.mu.Lock()
					defer b.mu.Unlock()
					return len(b.waiting) == i+1
				})
			}
			together := r.proxy.HoldNext(about)
			for _, h := range holds {
				h.Release()
			}
			await(t, "both in one Multi", together.Held())
			again := r.proxy.HoldNext(about)
			together.Release()
			await(t, "the first one to be sent again", again.Held())
			// It never arrives, and the session ends.
			r.k.Abandon()
			wg.Wait()
			for range 2 {
				if got := <-answers; got.Outcome == Applied || got.Outcome == Refused {
					t.Errorf("%+v, want no certain answer", got)
				}
			}
			if _, stat, err := beside.Get(path); err != nil || stat.Version != 0 {
				t.Errorf("Get() = %+v, %v: a write was applied, the test has tested nothing", stat, err)
			}
		})
	}
}

// A refusal tells about another write only if both begin by creating a child of one parent, which
// is missing for certain.
func TestRefusalTellsOnlyOfTheSameParent(t *testing.T) {
	t.Parallel()
	of := func(ops ...any) *write { return newWrite(Request{Ops: ops}) }
	create := func(path string) any { return &zk.CreateRequest{Path: path} }
	remove := func(path string) any { return &zk.DeleteRequest{Path: path} }
	for name, tt := range map[string]struct {
		front   []*write
		culprit *write
		other   *write
		r       Result
		told    int // with the culprit
	}{
		"the same parent":                {nil, of(create("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNoNode}, 2},
		"not permitted there":            {nil, of(create("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNoAuth}, 2},
		"another parent":                 {nil, of(create("/p/a")), of(create("/q/b")), Result{Op: 0, Err: zk.ErrNoNode}, 1},
		"another reason":                 {nil, of(create("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNodeExists}, 1},
		"a later operation":              {nil, of(create("/p/a"), remove("/p/c")), of(create("/p/b")), Result{Op: 1, Err: zk.ErrNoNode}, 1},
		"the other creates nothing":      {nil, of(create("/p/a")), of(remove("/p/b")), Result{Op: 0, Err: zk.ErrNoNode}, 1},
		"the culprit creates nothing":    {nil, of(remove("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNoNode}, 1},
		"a barrier":                      {nil, of(create("/p/a")), of(), Result{Op: 0, Err: zk.ErrNoNode}, 1},
		"the parent is removed before":   {[]*write{of(remove("/p"))}, of(create("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNoNode}, 0},
		"a child is removed before":      {[]*write{of(remove("/p/a/c"))}, of(remove("/p/a")), of(), Result{Op: 0, Err: zk.ErrNotEmpty}, 0},
		"another znode is removed first": {[]*write{of(remove("/q"))}, of(create("/p/a")), of(create("/p/b")), Result{Op: 0, Err: zk.ErrNoNode}, 2},
	} {
		tt.r.Outcome = Refused
		batch := append(slices.Clone(tt.front), tt.culprit, tt.other)
		so := sortOut(batch, len(tt.front), tt.r)
		if len(so.told) != tt.told || slices.Contains(so.told, tt.other) != (tt.told == 2) {
			t.Errorf("%s: %d writes are told of the refusal, want %d", name, len(so.told), tt.told)
		}
		n := len(so.told)
		if so.last != nil {
			n++
		}
		for _, piece := range so.pieces {
			n += len(piece)
		}
		if n != len(batch) || (tt.told == 0) != (so.last == tt.culprit) {
			t.Errorf("%s: %d writes of %d are told or sent again, the culprit last: %v", name, n, len(batch), so.last == tt.culprit)
		}
	}
}
