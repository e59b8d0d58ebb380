package redisstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// tally counts the losses that stores have accepted.
type tally struct {
	mu     sync.Mutex
	shards []int
}

func (a *tally) option() Option {
	return WithLossAcceptance(func(_ context.Context, shards int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.shards = append(a.shards, shards)
	})
}

func (a *tally) want(t *testing.T, want ...int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.shards, want) {
		t.Errorf("losses accepted: %v, want %v", a.shards, want)
	}
}

func TestLossIsAcceptedAlone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(r *testserver.Redis) error{
		"flush":              func(r *testserver.Redis) error { _, err := r.Do("FLUSHALL"); return err },
		"restart with empty": func(r *testserver.Redis) error { r.Restart(); return nil },
	} {
		for _, call := range []string{"Begin", "Issue", "Get", "Ping", "New"} {
			t.Run(name+", noticed by "+call, func(t *testing.T) {
				r := testserver.StartRedis(t)
				var told tally
				w := new(register)
				s := open(t, connect(t, r.URL()), witnessed(w), told.option())
				if err := lose(r); err != nil {
					t.Fatal(err)
				}
				if call == "New" {
					open(t, connect(t, r.URL()), witnessed(w), told.option())
				} else if err := calls[call](t.Context(), s); err != nil {
					t.Errorf("%s() = %v, want <nil>", call, err)
				}
				wantWorking(t, s)
				wantWorking(t, open(t, connect(t, r.URL()), witnessed(w)))
				told.want(t, Shards)
			})
		}
	}
}

// Something happens before any of the commands that accepting a loss and going on takes, and the witness may be asked at
// any point meanwhile: Redis is wiped again, or another process accepts the loss and the next one, or the loss alone.
// What was made for the first loss is not in the way.
func TestAcceptanceIsOvertakenBetweenAnyTwoCommands(t *testing.T) {
	t.Parallel()
	for name, overtake := range map[string]func(t *testing.T, m *mini, other *Store){
		"Redis is wiped":             func(_ *testing.T, m *mini, _ *Store) { m.FlushAll() },
		"another process accepts it": func(t *testing.T, m *mini, other *Store) { wantWorking(t, other); m.FlushAll() },
		"another process accepts two losses": func(t *testing.T, m *mini, other *Store) {
			wantWorking(t, other)
			m.FlushAll()
			wantWorking(t, other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := int64(1); ; at++ {
				m, w := startMini(t), new(register)
				client := connect(t, "redis://"+m.Addr())
				s := open(t, client, witnessed(w), WithLossAcceptance(nil), withRecheck(0))
				other := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), WithLossAcceptance(nil), withRecheck(0))
				m.FlushAll()
				h := &hook{at: at, before: func() { overtake(t, m, other) }}
				client.AddHook(h)
				await(t, "to accept the losses", func() error { return tryBegin(t, s) }) // a slow machine ends the first try after its time-out
				wantWorking(t, s)
				wantWorking(t, other)
				if h.n.Load() < at {
					if at < 5 {
						t.Errorf("a Begin that accepts a loss took %d commands, want some more", at-1)
					}
					return
				}
			}
		})
	}
}

// Several processes notice the same losses under load: each loss is accepted
// once, and no call fails.
func TestLossesUnderLoadAreAcceptedOnce(t *testing.T) {
	r := testserver.StartRedis(t)
	w := new(register)
	var told tally
	var begun atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		s := open(t, connect(t, r.URL()), witnessed(w), told.option(), withRecheck(0))
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					id, req := newAttempt(driver.ClientKey)
					if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
						t.Errorf("Begin(%v) = %v, %v, want begun", id, res.Begun, err)
					}
					begun.Add(1)
				}
			})
		}
	}
	for range 5 {
		from := begun.Load()
		await(t, "load", func() error {
			if begun.Load() < from+50 {
				return errors.New("not yet")
			}
			return nil
		})
		if _, err := r.Do("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if told := len(told.shards); told == 0 || w.version != int64(told)+1 {
		t.Errorf("%d losses were told, and the witness was written %d times after the first", told, w.version-1)
	}
}

// While the witness is away nothing is accepted, and it is not asked by every
// request.
func TestLossIsNotAcceptedWithoutItsWitness(t *testing.T) {
	m := startMini(t)
	w := new(register)
	var told tally
	var clock manual
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), told.option(), clock.option(), withRecheck(time.Hour), withReread(3*time.Hour))
	m.FlushAll()
	w.fail = errors.New("witness is away")
	loads := w.loads
	for range 20 {
		wantLost(t, s)
	}
	if got := w.loads - loads; got != 1 {
		t.Errorf("witness was asked %d times, want 1", got)
	}
	told.want(t)
	w.fail = nil
	clock.advance(time.Hour) // its pause is over
	wantWorking(t, s)
	told.want(t, Shards)
	m.FlushAll() // only a failure is followed by a pause
	wantWorking(t, s)
	told.want(t, Shards, Shards)
}

// A request waits for the acceptance of another request and gives up. It fails, and holds
// up no other request.
func TestLossAcceptanceHonoursDeadlines(t *testing.T) {
	m := startMini(t)
	w := &hung{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), WithLossAcceptance(nil), withReread(time.Hour))
	m.FlushAll()
	w.on = true
	one := make(chan error, 1) // accepts the loss
	go func() { one <- tryBegin(t, s) }()
	<-w.asked
	id, req := newAttempt(driver.ClientKey)
	if _, err := s.Begin(short(t), id, req); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Begin(%v) = %v, want %v", id, err, driver.ErrStoreLost)
	}
	if _, err := s.AcceptLoss(short(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("AcceptLoss() = %v, want %v", err, driver.ErrUnavailable)
	}
	close(w.answer)
	if err := <-one; err != nil {
		t.Errorf("Begin() that accepted the loss = %v, want begun", err)
	}
	w.on = false
	wantWorking(t, s)
}
