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
		flying, waiting int
		split           bool
		want            int
	}{
		"nothing under way":       {0, 1, false, 1},
		"one under way":           {1, 3, false, 3},
		"two under way":           {flights, 3, false, 0},
		"two and a full one":      {flights, maxBatch, false, maxBatch},
		"two, must not share one": {flights, 2, true, 2},
		"as many as there may be": {maxFlights, maxBatch, true, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &writer{flying: tt.flying, split: tt.split, wake: make(chan struct{}, 1)}
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
