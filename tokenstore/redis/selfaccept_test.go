package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
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
	if len(a.shards) != len(want) {
		t.Errorf("losses accepted: %v, want %v", a.shards, want)
		return
	}
	for i := range want {
		if a.shards[i] != want[i] {
			t.Errorf("losses accepted: %v, want %v", a.shards, want)
		}
	}
}

func TestLossIsAcceptedAlone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(r *testserver.Redis) error{
		"flush":              func(r *testserver.Redis) error { _, err := r.Do("FLUSHALL"); return err },
		"restart with empty": func(r *testserver.Redis) error { r.Restart(); return nil },
	} {
		for call, do := range map[string]func(ctx context.Context, s *Store) error{
			"Begin": func(ctx context.Context, s *Store) error {
				id, req := newAttempt(driver.ClientKey)
				res, err := s.Begin(ctx, id, req)
				if err == nil && !res.Begun {
					err = errors.New("not begun")
				}
				return err
			},
			"Issue": func(ctx context.Context, s *Store) error {
				id, _ := newAttempt(driver.IssuedToken)
				_, err := s.Issue(ctx, id, time.Hour)
				return err
			},
			"Get": func(ctx context.Context, s *Store) error {
				id, _ := newAttempt(driver.ClientKey)
				_, err := s.Get(ctx, id)
				return err
			},
			"Ping": func(ctx context.Context, s *Store) error { return s.Ping(ctx) },
			"New":  func(ctx context.Context, s *Store) error { return nil }, // below
		} {
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
				}
				if err := do(t.Context(), s); err != nil {
					t.Errorf("%s() = %v, want <nil>", call, err)
				}
				wantWorking(t, s)
				wantWorking(t, open(t, connect(t, r.URL()), witnessed(w)))
				told.want(t, Shards)
			})
		}
	}
}

func TestLossOfOneShardIsAcceptedAlone(t *testing.T) {
	for name, opts := range map[string][]Option{"with a witness": {witnessed(new(register))}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			m := startMini(t)
			var told tally
			s := open(t, connect(t, "redis://"+m.Addr()), append(opts, told.option())...)
			id, req := newAttempt(driver.ClientKey)
			m.Del(s.keys.incarnation(redisserver.ShardOf(id)))
			mustBegin(t, s, id, req)
			wantWorking(t, s)
			told.want(t, 1)
		})
	}
}

// before runs f before the command or pipeline with a number, or before each one if the
// number is 0.
type before struct {
	n  atomic.Int64
	at int64
	f  func()
}

func (h *before) step() {
	if n := h.n.Add(1); n == h.at || h.at == 0 {
		h.f()
	}
}

func (h *before) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *before) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { h.step(); return next(ctx, cmd) }
}

func (h *before) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error { h.step(); return next(ctx, cmds) }
}

// Redis is wiped before any of the commands that accepting a loss and going on
// takes, and the witness is asked at any point meanwhile.
func TestRedisIsWipedBetweenAnyTwoCommands(t *testing.T) {
	for at := int64(1); ; at++ {
		m := startMini(t)
		var told tally
		client := connect(t, "redis://"+m.Addr())
		s := open(t, client, witnessed(new(register)), told.option(), withRecheck(0))
		m.FlushAll()
		h := &before{at: at, f: m.FlushAll}
		client.AddHook(h)
		id, req := newAttempt(driver.ClientKey)
		if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
			t.Errorf("wiped again before command %d: Begin(%v) = %v, %v, want begun", at, id, res.Begun, err)
		}
		if h.n.Load() < at {
			if at < 5 {
				t.Errorf("a Begin that accepts a loss took %d commands, want some more", at-1)
			}
			return
		}
		wantWorking(t, s)
	}
}

// While a process accepts a loss, another one accepts this loss and the next one, at any
// point.
func TestAnotherProcessAcceptsTwoLossesBetweenAnyTwoCommands(t *testing.T) {
	t.Parallel()
	for at := int64(1); ; at++ {
		m, w := startMini(t), new(register)
		var told tally
		client := connect(t, "redis://"+m.Addr())
		s := open(t, client, witnessed(w), told.option(), withRecheck(0))
		other := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), told.option(), withRecheck(0))
		m.FlushAll()
		h := &before{at: at, f: func() {
			wantWorking(t, other)
			m.FlushAll()
			wantWorking(t, other)
		}}
		client.AddHook(h)
		await(t, "to accept both losses", func() error { // a slow machine ends the first try after its time-out
			id, req := newAttempt(driver.ClientKey)
			res, err := s.Begin(t.Context(), id, req)
			if err == nil && !res.Begun {
				t.Fatalf("Begin(%v) = %+v, want begun", id, res)
			}
			return err
		})
		wantWorking(t, s)
		if h.n.Load() < at {
			return
		}
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
	if _, err := told.sum(); err != nil {
		t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if saves, _ := told.sum(); w.version != int64(saves)+1 {
		t.Errorf("%d losses were told, and the witness was written %d times after the first", saves, w.version-1)
	}
}

func (a *tally) sum() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.shards) == 0 {
		return 0, errors.New("no loss was told")
	}
	return len(a.shards), nil
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
