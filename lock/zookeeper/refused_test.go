package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
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
	so := sortOut(slices.Clone(batch), i, result{outcome: refused, err: zk.ErrNodeExists})
	told = slices.Concat(so.told, so.doubted)
	if len(so.pieces) > maxBatch {
		t.Errorf("%d writes are sent again in %d Multis at once", len(batch), len(so.pieces))
	}
	multis = 1
	below := 0
	for _, piece := range so.pieces {
		m, d, more := rounds(t, piece, culprits)
		multis, below, told = multis+m, max(below, d), append(told, more...)
	}
	if len(so.last) > 0 {
		m, d, more := rounds(t, so.last, culprits)
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
		"the first":  {func(i int) bool { return i == 0 }, maxBatch, 2},
		"one inside": {func(i int) bool { return i == 70 }, 3, 2},
		"the last":   {func(i int) bool { return i == maxBatch-1 }, 2, 2},
		"half":       {func(i int) bool { return i%2 == 0 }, maxBatch, 2},
		"half, late": {func(i int) bool { return i >= maxBatch/2 }, 200, 5},
		"all":        {func(int) bool { return true }, maxBatch, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			batch, culprits := locks(maxBatch, tt.culprit)
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
			n, share := 1+rng.IntN(maxBatch), rng.Float64()
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
		wr := newWrite([]any{&zk.CreateRequest{Path: fmt.Sprintf("/lock/%d/x", i), Flags: zk.FlagEphemeral}})
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

func TestRefusedBatchKeepsWhatBelongsTogether(t *testing.T) {
	t.Parallel()
	place := func(line string) *write {
		return newWrite([]any{&zk.CreateRequest{Path: line + "/lock-x-", Flags: zk.FlagEphemeral | zk.FlagSequence}})
	}
	set := func(path string) *write { return newWrite([]any{&zk.SetDataRequest{Path: path}}) }
	lock := func(path string) *write { return newWrite([]any{&zk.CreateRequest{Path: path}}) }
	gone := newWrite([]any{&zk.DeleteRequest{Path: "/a/lock-y-1"}, &zk.DeleteRequest{Path: "/a"}})
	a1, b1, r1, r2, r3 := place("/a"), place("/b"), set("/r"), set("/r"), set("/r")
	bold1, bold2 := lock("/lock/3/x"), lock("/lock/4/x")
	bold1.bold, bold2.bold = true, true
	l1, l2, l3 := lock("/lock/1/x"), lock("/lock/1/y"), lock("/lock/2/x")
	tests := map[string]struct {
		batch   []*write
		culprit int
		err     error
		want    sorted
	}{
		"a parent is missing for all its children": {
			[]*write{l1, l3, l2}, 0, zk.ErrNoNode,
			sorted{told: []*write{l1, l2}, pieces: [][]*write{{l3}}, last: nil},
		},
		"a child that exists says nothing of others": {
			[]*write{l1, l2}, 0, zk.ErrNodeExists,
			sorted{told: []*write{l1}, pieces: [][]*write{{l2}}, last: nil},
		},
		"locks that may have no parents either": {
			[]*write{b1, bold1, l1, bold2}, 1, zk.ErrNoNode,
			sorted{told: []*write{bold1}, doubted: []*write{bold2}, pieces: [][]*write{{b1}, {l1}}},
		},
		"not where one is held": {
			[]*write{bold1, bold2}, 0, zk.ErrNodeExists,
			sorted{told: []*write{bold1}, pieces: [][]*write{{bold2}}},
		},
		"a write of the same znode is in front": {
			[]*write{r1, r2, l1, r3}, 1, zk.ErrBadVersion,
			sorted{told: nil, pieces: [][]*write{{r1}, {l1}}, last: []*write{r2, r3}},
		},
		"the parent may go with a write in front": {
			[]*write{gone, a1, l1}, 1, zk.ErrNoNode,
			sorted{told: nil, pieces: [][]*write{{gone}, {l1}}, last: []*write{a1}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := sortOut(tt.batch, tt.culprit, result{outcome: refused, err: tt.err})
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("sortOut() = %v, want %v", got, tt.want)
			}
		})
	}
}

// Each round trip that a free lock waits for is one of its own: half of 128 keys are
// held elsewhere, and no lock takes part in more than a few Multis.
func TestFreeLocksWaitForFewMultis(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var held, free []idem.KeyID
	for i := range maxBatch {
		id := r.sibling()
		if i%2 == 0 {
			if _, err := r.other.TryAcquire(bounded(t), request(id)); err != nil {
				t.Fatal(err)
			}
			held = append(held, id)
		} else {
			free = append(free, id)
		}
	}
	counters := map[idem.KeyID]*testserver.Counter{}
	for _, id := range free {
		counters[id] = r.proxy.Count(r.cfg.lockPath(id))
	}
	var batch []*write
	for i := range maxBatch {
		ids := [][]idem.KeyID{held, free}[i%2]
		batch = append(batch, newWrite([]any{sessionOf(r.c).lockAt(r.cfg.lockPath(ids[i/2]), nil)}))
	}
	sessionOf(r.c).w.sendAll(slices.Clone(batch))
	for i, wr := range batch {
		got := <-wr.answer
		if i%2 == 0 && !got.refusedBy(zk.ErrNodeExists) || i%2 == 1 && got.outcome != applied {
			t.Errorf("write %d: %+v", i, got)
		}
	}
	for _, id := range free {
		if n := counters[id].Seen().Requests[testserver.OpMulti]; n > 4 {
			t.Errorf("a free lock was sent in %d Multis one after the other, want 4 at most", n)
		}
	}
}

// A write is not refused for what another one would have done that shared its Multi
// and was never applied.
func TestNoRefusalForWhatWasNeverApplied(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		path    string // of the znode that both are about
		prepare func(t *testing.T, c *Client)
		write   func(ctx context.Context, c *Client) error
		wrong   func(err error) bool
		stands  func(t *testing.T, c *Client) bool // nothing was applied
	}{
		"Register.Save": {
			path:    "/app/register",
			prepare: func(t *testing.T, c *Client) { wantSaved(t, c.Register("/app/register"), "old", 0) },
			write: func(ctx context.Context, c *Client) error {
				return c.Register("/app/register").Save(ctx, []byte("new"), 1)
			},
			wrong: func(err error) bool { return err == nil || errors.Is(err, ErrConflict) },
			stands: func(t *testing.T, c *Client) bool {
				data, version, err := c.Register("/app/register").Load(bounded(t))
				return err == nil && version == 1 && string(data) == "old"
			},
		},
		"Queue.ForgetName": {
			path:    "/app/q-names/n",
			prepare: func(t *testing.T, c *Client) { offerNamed(t, c.Queue("/app/q"), "n", "x", true) },
			write:   func(ctx context.Context, c *Client) error { return c.Queue("/app/q").ForgetName(ctx, "n") },
			wrong:   func(err error) bool { return err == nil },
			stands: func(t *testing.T, c *Client) bool {
				names, err := c.Queue("/app/q").Names(bounded(t))
				return err == nil && len(names) == 1
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 20*time.Second)
			cfg := r.cfg
			cfg.Servers = testserver.SharedZooKeeper(t)
			beside := open(t, cfg)
			tt.prepare(t, beside)
			for i := range stamps { // so that nothing is refused for want of one
				if err := sessionOf(r.c).makeStamp(sessionOf(r.c).stampPath(i)); err != nil {
					t.Fatal(err)
				}
			}
			about := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.Chroot+tt.path))

			// While the Multis that there may be are under way, the two writes meet.
			w := sessionOf(r.c).w
			var holds []*testserver.Hold
			var wg sync.WaitGroup
			for range flights {
				path := r.cfg.lockPath(r.sibling())
				h := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(path)))
				holds = append(holds, h)
				wg.Go(func() { w.do(sessionOf(r.c).lockAt(path, nil)) })
				await(t, "a write under way", h.Held())
			}
			answers := make(chan error, 2)
			for i := range 2 {
				wg.Go(func() { answers <- tt.write(bounded(t), r.c) })
				until(t, "the write to wait", func() bool {
					w.mu.Lock()
					defer w.mu.Unlock()
					return len(w.waiting) == i+1
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
			r.c.Abandon()
			wg.Wait()
			for range 2 {
				if err := <-answers; tt.wrong(err) {
					t.Errorf("%v, want no word on what nobody knows", err)
				}
			}
			if !tt.stands(t, beside) {
				t.Error("a write was applied: the test has tested nothing")
			}
		})
	}
}

func wantSaved(t *testing.T, r *Register, data string, version int64) {
	t.Helper()
	if err := r.Save(bounded(t), []byte(data), version); err != nil {
		t.Fatalf("Save() = %v", err)
	}
}
