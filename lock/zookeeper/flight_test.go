package zookeeper

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"
)

// Two Multis are under way at most, unless those that wait fill one or must not
// share one: what comes meanwhile leaves together.
func TestWritesLeaveTogether(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		flying, waiting, lazy int
		split                 bool
		want                  int
	}{
		"nothing under way":       {0, 1, 0, false, 1},
		"one under way":           {1, 3, 0, false, 3},
		"two under way":           {flights, 3, 0, false, 0},
		"two and a full one":      {flights, maxBatch, 0, false, maxBatch},
		"two, must not share one": {flights, 2, 0, true, 2},
		"as many as there may be": {maxFlights, maxBatch, 0, true, 0},
		"some in no hurry":        {0, 3, 2, false, 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &writer{flying: tt.flying, split: tt.split, idle: tt.lazy, wake: make(chan struct{}, 1)}
			for range tt.waiting {
				w.waiting = append(w.waiting, newWrite([]any{&zk.DeleteRequest{Path: "/p"}}))
			}
			if got := len(w.takeOff()); got != tt.want {
				t.Fatalf("takeOff() took %d writes, want %d", got, tt.want)
			}
			if tt.want > 0 {
				return
			}
			for len(w.wake) > 0 {
				<-w.wake
			}
			for range tt.flying {
				w.land()
			}
			if len(w.wake) == 0 {
				t.Error("nobody was woken when the ones under way were answered")
			}
		})
	}
}

// Lazy writes go with one that is not, or when their time has come.
func TestLazyWritesWaitForCompany(t *testing.T) {
	t.Parallel()
	lazy := func(w *writer) {
		wr := newWrite([]any{&zk.DeleteRequest{Path: "/p"}})
		wr.lazy = true
		w.mu.Lock()
		defer w.mu.Unlock()
		w.queue(wr)
		if len(w.wake) > 0 {
			t.Error("a lazy write has roused a worker")
		}
	}
	w := &writer{wake: make(chan struct{}, 1)}
	lazy(w)
	lazy(w)
	if got := w.takeOff(); len(got) > 0 && w.overdue != nil { // else its time had come
		t.Errorf("takeOff() took %d lazy writes", len(got))
	}
	w.mu.Lock()
	w.queue(newWrite([]any{&zk.DeleteRequest{Path: "/q"}}))
	w.mu.Unlock()
	await(t, "a worker to be roused", w.wake)
	if got := w.takeOff(); len(got) != 3 {
		t.Errorf("takeOff() took %d writes, want the one in a hurry and the two before it", len(got))
	}
	if w.idle != 0 || w.overdue != nil {
		t.Errorf("%d lazy writes are left, with a timer %v", w.idle, w.overdue)
	}
	lazy(w)
	await(t, "the lazy write's time", w.wake)
	if got := w.takeOff(); len(got) != 1 {
		t.Errorf("takeOff() took %d writes, want the one whose time has come", len(got))
	}
}

// Who has asked is told once: by the answer, or by the session's end, whichever
// comes first.
func TestAskedWritesAreToldOnce(t *testing.T) {
	t.Parallel()
	s := &session{over: make(chan struct{}), why: errExpired}
	w := newWriter(s, "/member", nil)
	var answered, unanswered []result
	w.ask(func(r result) { answered = append(answered, r) }, &zk.DeleteRequest{Path: "/a"})
	w.ask(func(r result) { unanswered = append(unanswered, r) }, &zk.DeleteRequest{Path: "/b"})
	batch := w.takeOff()
	w.reply(batch[0], result{outcome: applied})
	close(s.over)
	w.end()
	for _, wr := range batch {
		w.reply(wr, result{outcome: unknown})
	}
	if len(answered) != 1 || answered[0].outcome != applied {
		t.Errorf("told %+v, want that it was applied, once", answered)
	}
	if len(unanswered) != 1 || unanswered[0].outcome != ended || !errors.Is(unanswered[0].err, errExpired) {
		t.Errorf("told %+v, want that the session is over, once", unanswered)
	}
}
