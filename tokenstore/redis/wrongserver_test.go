package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/redis/internal/loss"
)

// tryBegin begins a fresh key.
func tryBegin(tb testing.TB, s *Store) error {
	tb.Helper()
	id, req := newAttempt(driver.ClientKey)
	res, err := s.Begin(tb.Context(), id, req)
	if err == nil && !res.Begun {
		err = errors.New("not begun")
	}
	return err
}

// at returns the version that the witness has.
func (r *register) at() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// An instance comes up with the address of an empty server and takes that for a
// loss. The instances at the right server notice within the interval, and the witness does
// not flip back.
func TestWrongEmptyServerIsServedAlone(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{"all accept by themselves": {WithLossAcceptance(nil)}, "only the wrong one does": nil} {
		t.Run(name, func(t *testing.T) {
			a, b := testserver.StartRedis(t), testserver.StartRedis(t)
			w := new(register)
			opts := append([]Option{witnessed(w), withRecheck(0)}, opts...)
			var rightClock, clock manual
			right := open(t, connect(t, a.URL()), append(opts, rightClock.option())...)
			idle := open(t, connect(t, a.URL()), append(opts, withReread(time.Hour), clock.option())...)
			wantWorking(t, right)

			var wrongClock manual
			wrong := open(t, connect(t, b.URL()), witnessed(w), WithLossAcceptance(nil), withRecheck(0), wrongClock.option())
			wantWorking(t, wrong)
			rightClock.advance(loss.Every)
			wantLost(t, right)
			clock.advance(time.Hour)
			wantLost(t, idle)

			version := w.at()
			for range 10 {
				wantLost(t, right)
				wantWorking(t, wrong)
			}
			wantLost(t, open(t, connect(t, a.URL()), opts...)) // a restart does not help
			if got := w.at(); got != version {
				t.Errorf("the witness was written %d times, want none", got-version)
			}

			// An operator sets it right, and now the wrong one does not come back.
			mustAccept(t, right, Shards)
			wrongClock.advance(time.Hour)
			version = w.at()
			for range 10 {
				wantLost(t, wrong)
				wantWorking(t, right)
			}
			wantLost(t, open(t, connect(t, b.URL()), witnessed(w), WithLossAcceptance(nil), withRecheck(0)))
			wantWorking(t, idle)
			if got := w.at(); got != version {
				t.Errorf("the witness was written %d times, want none", got-version)
			}
		})
	}
}

// A store does not take over another store's server by itself, even if some of its shards
// are empty.
func TestForeignServerIsLeftToAnOperator(t *testing.T) {
	for name, lose := range map[string]func(m *mini, l *layout){
		"whole": func(*mini, *layout) {},
		"in all shards but one": func(m *mini, l *layout) {
			m.Del(l.incarnation(7))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := startMini(t), startMini(t)
			w := new(register)
			var told tally
			right := open(t, connect(t, "redis://"+a.Addr()), witnessed(w), told.option(), withReread(0))
			theirs := open(t, connect(t, "redis://"+b.Addr()), withReread(0))
			lose(b, theirs.keys)
			keys := len(b.Keys())
			wrong := open(t, connect(t, "redis://"+b.Addr()), witnessed(w), told.option(), withRecheck(0))
			for range 3 {
				wantLost(t, wrong)
			}
			wantWorking(t, right)
			told.want(t)
			if w.at() != 1 || len(b.Keys()) != keys {
				t.Errorf("the witness is at version %d and the server has %d keys, want 1 and %d", w.at(), len(b.Keys()), keys)
			}
			mustAccept(t, wrong, Shards)
			wantWorking(t, wrong)
			wantLost(t, theirs) // the incarnations are new, so nothing goes on under the old ones
		})
	}
}

// An acceptance dies before any of its commands, or before or after its save. The next
// process completes it.
func TestAcceptanceThatDiedIsFinishedByAnother(t *testing.T) {
	for at := int64(1); ; at++ {
		m := startMini(t)
		var told tally
		w := new(register)
		client := connect(t, "redis://"+m.Addr())
		dying := open(t, client, witnessed(w), told.option(), withRecheck(0))
		other := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), told.option(), withRecheck(0))
		m.FlushAll()
		ctx, die := context.WithCancel(t.Context())
		h := &hook{at: at, before: die}
		client.AddHook(h)
		away := errors.New("died before its save")
		w.onSave = func() { w.mu.Lock(); w.fail = away; w.mu.Unlock() }
		id, req := newAttempt(driver.ClientKey)
		if _, err := dying.Begin(ctx, id, req); err == nil {
			t.Errorf("Begin(%v) of what dies before command %d = <nil>, want an error", id, at)
		}
		die()
		w.mu.Lock()
		w.fail, w.onSave = nil, nil
		w.mu.Unlock()
		told.want(t)
		wantWorking(t, other)
		told.want(t, Shards)
		wantWorking(t, open(t, connect(t, "redis://"+m.Addr()), witnessed(w)))
		if h.n.Load() < at {
			if at < 4 {
				t.Errorf("accepting a loss took %d commands, want some more", at-1)
			}
			return
		}
	}
}

// An operator accepts one shard's loss while a Begin, or a Ping that looks at all shards, notices that of another one. The
// store accepts that itself.
func TestLossOfAnotherShardIsAcceptedMeanwhile(t *testing.T) {
	for name, witness := range map[string]func() []Option{
		"with a witness": func() []Option { return []Option{witnessed(new(register))} }, "without": func() []Option { return nil },
	} {
		for call, do := range map[string]func(t *testing.T, s *Store){
			"Begin": func(t *testing.T, s *Store) {
				id, req := newAttempt(driver.ClientKey)
				id[0] = 1
				mustBegin(t, s, id, req)
			},
			"Ping": wantWorking,
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				m := startMini(t)
				client := connect(t, "redis://"+m.Addr())
				var told tally
				s := open(t, client, append(witness(), told.option())...)
				client.AddHook(&hook{at: 1, before: func() {
					m.Del(s.keys.incarnation(2))
					mustAccept(t, s, 1)
					m.Del(s.keys.incarnation(1))
				}})
				do(t, s)
				told.want(t, 1)
			})
		}
	}
}

// hung is a witness that does not answer until the caller gives up.
type hung struct {
	register
	asked  chan struct{}
	answer chan struct{} // closed: it answers after all
	on     bool
}

func (h *hung) Load(ctx context.Context) ([]byte, int64, error) {
	if h.on {
		select {
		case h.asked <- struct{}{}:
		default:
		}
		select {
		case <-h.answer:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	return h.register.Load(ctx)
}

// Once per interval one Begin asks the witness, however many there are.
func TestRunningStoreAsksItsWitnessOncePerInterval(t *testing.T) {
	m := startMini(t)
	w := new(register)
	var clock manual
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withReread(time.Hour), clock.option())
	loads := w.loads
	for _, want := range []int{0, 1, 2} {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if err := tryBegin(t, s); err != nil {
						t.Errorf("Begin() = %v, want <nil>", err)
					}
				}
			})
		}
		wg.Wait()
		if got := w.loads - loads; got != want {
			t.Errorf("after %d intervals the witness was asked %d times", want, got)
		}
		clock.advance(time.Hour)
	}
}

// While one Begin waits for a hung witness, the others go on. After the time-out it goes
// on too. If its caller gives up, the next Begin asks.
func TestWitnessThatHangsHoldsUpOneBegin(t *testing.T) {
	m := startMini(t)
	w := &hung{asked: make(chan struct{}, 1)}
	var clock manual
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withReread(time.Hour), clock.option())
	w.on = true
	clock.advance(time.Hour)
	one := make(chan error, 1) // the first Begin
	go func() { one <- tryBegin(t, s) }()
	<-w.asked
	for range 5 {
		if err := tryBegin(t, s); err != nil {
			t.Errorf("Begin() while another one waits for the witness = %v, want <nil>", err)
		}
	}
	if n := len(w.asked); n != 0 {
		t.Errorf("%d other Begins asked the witness, want none", n)
	}
	if err := <-one; err != nil {
		t.Errorf("Begin() that asked = %v, want <nil>", err)
	}

	clock.advance(time.Hour)
	ctx, giveUp := context.WithCancel(t.Context())
	go func() { <-w.asked; giveUp() }()
	id, req := newAttempt(driver.ClientKey)
	if _, err := s.Begin(ctx, id, req); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Begin(%v) whose caller gives up = %v, want %v", id, err, driver.ErrUnavailable)
	}
	w.on = false
	loads := w.loads
	if err := tryBegin(t, s); err != nil || w.loads != loads+1 {
		t.Errorf("Begin() after it = %v, and the witness was asked %d times, want <nil> and once", err, w.loads-loads)
	}
}
