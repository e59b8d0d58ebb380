package server

import (
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

func keyOf(merchant string, n int) driver.KeyID {
	return idem.NewKeyID(merchant, idem.Key(rune('a'+n%26))+idem.Key(rune('a'+n/26)))
}

// One merchant cannot push the keys of another one out, nor those that a page shows.
func TestTimelineIsBoundedForEachMerchant(t *testing.T) {
	timeline := NewTimeline()
	timeline.addf("small", keyOf("small", 0), "received", "one")
	watched, end := timeline.follow("great", keyOf("great", 0))
	timeline.addf("great", keyOf("great", 0), "received", "one")
	for n := range 3 * keptKeys {
		timeline.addf("great", keyOf("great", 1+n), "received", "one")
	}
	if timeline.stories[keyOf("small", 0)] == nil {
		t.Error("the key of the small merchant is forgotten")
	}
	if list, _, _ := timeline.after(watched, 0); len(list) != 1 || timeline.stories[watched.id] != watched {
		t.Errorf("the key that a page shows has %v, want its moment", list)
	}
	if n := len(timeline.shelves["great"].stories); n != keptKeys || len(timeline.stories) != keptKeys+1 {
		t.Errorf("%d keys of the great merchant and %d in all are kept, want %d and %d", n, len(timeline.stories), keptKeys, keptKeys+1)
	}
	for n := range 3 * keptMoments {
		timeline.addf("great", watched.id, "handler", "moment %d", n)
	}
	if list, next, _ := timeline.after(watched, 0); len(list) != keptMoments || next != 3*keptMoments+1 {
		t.Errorf("%d moments are kept up to number %d, want %d up to %d", len(list), next, keptMoments, 3*keptMoments+1)
	}
	end()
	timeline.addf("great", keyOf("great", 1), "received", "one")
	if timeline.stories[watched.id] != nil {
		t.Error("the oldest key is kept after its page has left")
	}
}

// A page that watches a key to which nothing happens leaves nothing behind.
func TestTimelineForgetsStreams(t *testing.T) {
	timeline := NewTimeline()
	var ends []func()
	for n := range mostStreams {
		s, end := timeline.follow("m", keyOf("m", n))
		if s == nil {
			t.Fatalf("stream %d of %d is refused", n+1, mostStreams)
		}
		ends = append(ends, end)
	}
	if s, _ := timeline.follow("m", keyOf("m", 0)); s != nil {
		t.Errorf("more than %d streams of a merchant are open", mostStreams)
	}
	if s, end := timeline.follow("other", keyOf("other", 0)); s == nil {
		t.Error("a stream of another merchant is refused")
	} else {
		end()
	}
	for _, end := range ends {
		end()
	}
	if s, end := timeline.follow("m", keyOf("m", 0)); s == nil {
		t.Error("a stream is refused after the others have ended")
	} else {
		end()
	}
	if len(timeline.stories) != 0 || len(timeline.shelves["m"].stories) != 0 {
		t.Errorf("%d stories are left, want none", len(timeline.stories))
	}
}

// A process that is about to crash waits for its pages, and not for ever.
func TestTimelineAwaitsItsPages(t *testing.T) {
	timeline, id := NewTimeline(), keyOf("m", 0)
	timeline.addf("m", id, "handler", "one")
	if !timeline.told() {
		t.Error("a key without a page is waited for")
	}
	s, end := timeline.follow("m", id)
	if timeline.told() {
		t.Error("a page that has got nothing is not waited for")
	}
	timeline.AwaitTold(time.Millisecond)
	_, next, _ := timeline.after(s, 0)
	timeline.tell(s, next)
	if !timeline.told() {
		t.Error("a page that has got everything is waited for")
	}
	end()
}

// What happens without a request, such as a pass of the sweeper, tells of known keys only.
func TestTimelineWithoutAMerchant(t *testing.T) {
	timeline, id := NewTimeline(), keyOf("m", 0)
	ev := telemetry.Event{Type: telemetry.EventUnknown, KeyID: id}
	timeline.Observe(t.Context(), ev)
	if len(timeline.stories) != 0 {
		t.Error("an event without a merchant began a story")
	}
	timeline.addf("m", id, "received", "one")
	timeline.Observe(t.Context(), ev)
	if n := len(timeline.stories[id].moments); n != 2 {
		t.Errorf("%d moments, want the request and the doubt", n)
	}
}

// The timeline says what became of the money, who decided it, and why a request was refused.
func TestTimelineTellsTheTruth(t *testing.T) {
	joined := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: driver.JoinedDomain}}
	locked := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "d", Token: 7}}
	for name, tt := range map[string]struct {
		steps []string // of the charge, before the event
		fence driver.Fence
		ev    telemetry.Event
		want  string
	}{
		"begun, joined":           {nil, driver.Fence{}, telemetry.Event{Type: telemetry.EventBegun, Attempt: joined}, "an attempt is noted in the same transaction"},
		"begun":                   {nil, locked.Fence, telemetry.Event{Type: telemetry.EventBegun, Attempt: locked}, "attempt 1 is noted in the token store"},
		"stored, joined":          {[]string{"before-ledger", "after-ledger"}, driver.Fence{}, telemetry.Event{Type: telemetry.EventCompleted, Attempt: joined}, "payment and answer commit together"},
		"refusal stored, joined":  {[]string{"before-ledger", "after-ledger", "before-ledger"}, driver.Fence{}, telemetry.Event{Type: telemetry.EventCompleted, Attempt: joined}, "the answer is stored"},
		"released, joined":        {[]string{"before-ledger", "after-ledger"}, driver.Fence{}, telemetry.Event{Type: telemetry.EventReleased, Attempt: joined}, "the database rolled back: nothing was charged"},
		"stored":                  {[]string{"before-ledger", "after-ledger"}, locked.Fence, telemetry.Event{Type: telemetry.EventCompleted, Attempt: locked}, "the answer is stored"},
		"released":                {[]string{"before-ledger"}, locked.Fence, telemetry.Event{Type: telemetry.EventReleased, Attempt: locked}, "nothing happened, so the next request may run"},
		"decided by the resolver": {nil, locked.Fence, telemetry.Event{Type: telemetry.EventResolved, State: driver.StateCompleted, By: "resolver"}, "the ledger was asked: the money has moved"},
		"decided by an operator":  {nil, locked.Fence, telemetry.Event{Type: telemetry.EventResolved, State: driver.StateReleased, By: "ops"}, "ops decided: no money has moved"},
		"refused, first runs":     {nil, locked.Fence, telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeInProgress)}, "the first one still runs (in-progress)"},
		"refused, rare":           {nil, locked.Fence, telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeOwnershipLost)}, "Ownership was lost (ownership-lost)"},
	} {
		t.Run(name, func(t *testing.T) {
			timeline, id := NewTimeline(), keyOf("m", 0)
			ctx := payments.WithMerchant(t.Context(), "m")
			for _, step := range tt.steps {
				timeline.Step(ctx, step, idem.Execution{KeyID: id, Attempt: 1, Fence: tt.fence})
			}
			tt.ev.KeyID = id
			timeline.Observe(ctx, tt.ev)
			var said []string
			for _, m := range timeline.stories[id].moments {
				said = append(said, m.Text)
			}
			if !slices.Contains(said[len(tt.steps):], tt.want) {
				t.Errorf("the timeline says %q, want %q after %v", said, tt.want, tt.steps)
			}
			if written := map[bool]string{true: uncommitted, false: "the payment is written"}[tt.fence == (driver.Fence{})]; len(tt.steps) > 1 && said[1] != written {
				t.Errorf("the timeline says %q, want %q", said[1], written)
			}
		})
	}
}
