package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// paid is a key that was completed, and the Begin of a later attempt on it.
type paid struct {
	id  driver.KeyID
	req driver.BeginRequest
}

func pay(tb testing.TB, s *Store, keyTTL time.Duration) paid {
	tb.Helper()
	id, req := newAttempt(driver.ClientKey)
	st := completion(mustBegin(tb, s, id, req), "paid")
	st.ResultTTL, st.KeyTTL = keyTTL, keyTTL
	if res, err := s.Settle(tb.Context(), id, st); err != nil || !res.Settled {
		tb.Fatalf("Settle(%v) = %v, %v, want settled", id, res.Settled, err)
	}
	req.Fence.Token++
	req.Nonce = driver.NewNonce()
	return paid{id, req}
}

// wantJump requires that no attempt begins on a shard that may have forgotten keys, and
// that a key which is missing does not look as if it had never been there.
func wantJump(tb testing.TB, s *Store, key paid) {
	tb.Helper()
	if res, err := s.Begin(tb.Context(), key.id, key.req); !errors.Is(err, driver.ErrStoreLost) {
		tb.Errorf("Begin(%v) = begun %v, %v, want %v", key.id, res.Begun, err, driver.ErrStoreLost)
	}
	if rec, err := s.Get(tb.Context(), key.id); !errors.Is(err, driver.ErrStoreLost) && (err != nil || rec.State != driver.StateCompleted) {
		tb.Errorf("Get(%v) = %v, %v, want %v", key.id, rec.State, err, driver.ErrStoreLost)
	}
	if err := s.Ping(tb.Context()); !errors.Is(err, driver.ErrStoreLost) {
		tb.Errorf("Ping() = %v, want %v", err, driver.ErrStoreLost)
	}
}

func wantServed(tb testing.TB, s *Store) {
	tb.Helper()
	if err := s.Ping(tb.Context()); err != nil {
		tb.Errorf("Ping() = %v, want <nil>", err)
	}
	pay(tb, s, time.Hour)
}

// The clock of a real server is a day ahead for a moment, longer than a key is remembered. Redis
// deletes the key by itself, and the clock is right again.
func TestJumpOfARealClockIsALoss(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]func(tb testing.TB, s *Store, key, lasting paid){
		"nobody calls during the jump": func(testing.TB, *Store, paid, paid) {},
		"a read during the jump": func(tb testing.TB, s *Store, key, _ paid) {
			if rec, err := s.Get(tb.Context(), key.id); !errors.Is(err, driver.ErrStoreLost) {
				tb.Errorf("Get(%v) = %v, %v, want %v", key.id, rec.State, err, driver.ErrStoreLost)
			}
		},
		"a payment during the jump": func(tb testing.TB, s *Store, key, _ paid) { wantJump(tb, s, key) },
		"a payment after a repeat that is answered": func(tb testing.TB, s *Store, key, lasting paid) {
			if rec, err := s.Get(tb.Context(), lasting.id); err != nil || rec.State != driver.StateCompleted {
				tb.Errorf("Get(%v) = %v, %v, want the answer", lasting.id, rec.State, err)
			}
			wantJump(tb, s, key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testserver.StartRedis(t, testserver.OnRedisMachine(testserver.NewMachine(t)))
			var mu sync.Mutex
			var kinds []ClockChangeKind
			s := open(t, connect(t, r.URL()), WithClockChanges(func(_ context.Context, c ClockChange) {
				mu.Lock()
				defer mu.Unlock()
				kinds = append(kinds, c.Kind)
			}))
			key, lasting := pay(t, s, 24*time.Hour), pay(t, s, 48*time.Hour)
			r.StepClock(25 * time.Hour)
			await(t, "the expiry of the key", func() error { return gone(r, s, key.id) })
			during(t, s, key, lasting)
			r.StepClock(0)
			await(t, "the right time", func() error { return rightTime(s) })
			wantJump(t, s, key)
			other := open(t, connect(t, r.URL())) // it starts after the jump, and has no witness
			wantJump(t, other, key)
			mu.Lock()
			if !slices.Contains(kinds, ServerJumped) {
				t.Errorf("the store told of %v, want %v", kinds, ServerJumped)
			}
			mu.Unlock()
			mustAccept(t, s, Shards)
			wantServed(t, s)
			if _, err := other.AcceptLoss(t.Context()); err != nil {
				t.Errorf("AcceptLoss() in the other process = %v, want <nil>", err)
			}
			wantServed(t, other)
		})
	}
}

// gone returns nil if Redis has deleted the record. A look at the record itself would delete it.
func gone(r *testserver.Redis, s *Store, id driver.KeyID) error {
	names, err := r.Do("SCAN", "0", "MATCH", s.keys.record(id), "COUNT", "10000")
	if err == nil && len(names) > 1 {
		err = errors.New("the record is still there")
	}
	return err
}

func rightTime(s *Store) error {
	now, err := s.Clock(context.Background())
	if err == nil && time.Until(now).Abs() > time.Minute {
		err = errors.New("the clock is wrong")
	}
	return err
}

// step moves the clock of the server alone. If it goes ahead, keys expire.
func (m *mini) step(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.SetTime(m.now.Add(by))
	if by > 0 {
		m.FastForward(by)
	}
}

// set sets the clocks of the process.
func (m *mini) set(wallBy, leaseBy time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wallBy, m.leaseBy = wallBy, leaseBy
}

// Each case begins with a key that was paid and is remembered for 30 days. A shard that no call
// used for an hour has only the clocks to go by.
func TestWhichClockIsWrong(t *testing.T) {
	t.Parallel()
	const idle = time.Hour
	for name, tt := range map[string]struct {
		moves func(m *mini)
		lost  bool        // for the process that runs
		anew  bool        // for a process that starts now
		told  ClockChange // the zero value for none
	}{
		"nothing":                  {moves: func(*mini) {}},
		"an hour without a call":   {moves: func(m *mini) { m.Elapse(idle) }},
		"a night":                  {moves: func(m *mini) { m.Elapse(12 * time.Hour) }},
		"the server jumps":         {moves: func(m *mini) { m.step(2 * time.Minute) }, lost: true, anew: true, told: ClockChange{ServerJumped, 2 * time.Minute}},
		"the server jumps by 59 s": {moves: func(m *mini) { m.step(59 * time.Second) }},
		"the server jumps after an hour": {moves: func(m *mini) { m.Elapse(idle); m.step(2 * time.Minute) },
			lost: true, anew: true, told: ClockChange{ServerJumped, 2 * time.Minute}},
		"the server jumps while all are stopped": {moves: func(m *mini) { m.Elapse(12 * time.Hour); m.step(25 * time.Hour) },
			lost: true, anew: true, told: ClockChange{ServerJumped, 25 * time.Hour}},
		"the server goes back":                                    {moves: func(m *mini) { m.step(-2 * time.Hour) }, told: ClockChange{ServerBack, -2 * time.Hour}},
		"the wall clock goes back":                                {moves: func(m *mini) { m.Elapse(idle); m.set(-2*time.Hour, 0) }, told: ClockChange{WallMoved, -2 * time.Hour}, anew: true},
		"the wall clock jumps":                                    {moves: func(m *mini) { m.Elapse(idle); m.set(2*time.Hour, 0) }, told: ClockChange{WallMoved, 2 * time.Hour}},
		"the process was suspended, and the lease clock knows":    {moves: func(m *mini) { m.Elapse(idle) }},
		"the process was suspended, and the lease clock does not": {moves: func(m *mini) { m.Elapse(idle); m.set(0, -idle) }, told: ClockChange{ProcessPaused, idle}},
		"as before, and the last call was of a process whose wall clock is ahead": {moves: func(m *mini) {
			m.Elapse(time.Minute)
			m.set(2*time.Hour, 0)
			wantServed(t, open(t, connect(t, "redis://"+m.Addr())))
			m.Elapse(idle)
			m.set(0, -idle)
		}, anew: true, told: ClockChange{ProcessPaused, idle}},
		"as before, and the server jumped and went back": {moves: func(m *mini) {
			const pause = 5 * time.Minute
			m.Elapse(pause)
			m.set(0, -pause)
			m.step(idle)
			m.step(0)
		}, lost: true, anew: true, told: ClockChange{ServerJumped, 5 * time.Minute}},
		"the machine was suspended, and none of its clocks know": {moves: func(m *mini) { m.Elapse(idle); m.set(-idle, -idle) },
			lost: true, anew: true, told: ClockChange{ServerJumped, idle}},
		"the server jumps, and so does the wall clock of the process": {moves: func(m *mini) { m.Elapse(idle); m.set(idle, 0); m.step(idle) }, told: ClockChange{ProcessPaused, idle}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, started := range []string{"before", "after"} {
				for _, method := range []string{"Begin", "Get"} {
					m := startMini(t)
					client := connect(t, "redis://"+m.Addr())
					var told ClockChange
					changes := WithClockChanges(func(_ context.Context, c ClockChange) { told = c })
					s := open(t, client, changes) // it knows the time of the server from its start
					key := pay(t, open(t, client), 30*24*time.Hour)
					tt.moves(m)
					lost := tt.lost
					if started == "after" {
						s, lost = open(t, client), tt.anew
					}
					var begun bool
					var err error
					if method == "Begin" {
						var res driver.BeginResult
						res, err = s.Begin(t.Context(), key.id, key.req)
						begun = res.Begun
					} else { // nothing is there, or not any more
						err = calls[method](t.Context(), s)
					}
					if got := errors.Is(err, driver.ErrStoreLost); got != lost || !lost && (err != nil || begun) {
						t.Errorf("%s() in a process that started %s = begun %v, %v, want a loss: %v", method, started, begun, err, lost)
					}
					if started == "before" && told != tt.told {
						t.Errorf("%s() told of %v, want %v", method, told, tt.told)
					}
				}
			}
		})
	}
}

// While the clock is behind, a key is remembered for as long as if the clock were right, so
// nothing is forgotten when it is right again.
func TestKeyOfAClockThatWentBackIsRemembered(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{0, time.Hour} { // after the step
		for name, end := range map[string]func(tb testing.TB, s *Store) paid{
			"completed": func(tb testing.TB, s *Store) paid { return pay(tb, s, 6*time.Hour) },
			"after an unknown outcome": func(tb testing.TB, s *Store) paid {
				id, req := newAttempt(driver.ClientKey)
				st := completion(mustBegin(tb, s, id, req), "")
				st.State, st.ResultTTL, st.KeyTTL = driver.StateUnknown, 6*time.Hour, 6*time.Hour
				for _, st.State = range []driver.State{driver.StateUnknown, driver.StateCompleted} {
					if st.ID = driver.NewNonce(); st.State == driver.StateCompleted {
						st.Decision.By = "operator"
					}
					if res, err := s.Settle(tb.Context(), id, st); err != nil || !res.Settled {
						tb.Fatalf("Settle(%v) = %v, %v, want settled", st.State, res.Settled, err)
					}
				}
				req.Fence.Token++
				return paid{id, req}
			},
		} {
			m := startMini(t)
			s := open(t, connect(t, "redis://"+m.Addr()))
			for shard := range Shards { // so that every shard has seen the right time
				id, req := newAttempt(driver.ClientKey)
				id[0] = byte(shard)
				mustBegin(t, s, id, req)
			}
			m.Elapse(later)
			m.step(-12 * time.Hour)
			key := end(t, s)
			m.step(0)
			wantRemembered(t, s, key.id, key.req, driver.StateCompleted)
			m.Elapse(6*time.Hour - time.Minute)
			if t.Failed() {
				t.Errorf("%s, %v after the clock went back", name, later)
			}
			wantRemembered(t, s, key.id, key.req, driver.StateCompleted)
		}
	}
}

// The clock gains half a minute each hour. No two looks at it differ by a minute, whatever shard has them.
func TestSlowDriftIsNoJump(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()), WithClockChanges(func(_ context.Context, c ClockChange) { t.Errorf("the store told of %v", c) }))
	gained := time.Duration(0)
	for range 48 {
		m.Elapse(time.Hour)
		gained += 30 * time.Second
		m.step(gained)
		pay(t, s, time.Hour)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() after %v of drift = %v, want <nil>", gained, err)
	}
}

// The process reads its clocks, and then it is suspended for an hour. Its call arrives when its
// reading is old, and that is no jump.
func TestCallThatCameLateIsNoJump(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client)
	key := pay(t, s, 30*24*time.Hour)
	client.AddHook(&hook{at: 1, before: func() { m.Elapse(time.Hour) }})
	if res, err := s.Begin(t.Context(), key.id, key.req); err != nil || res.Begun {
		t.Errorf("Begin() = begun %v, %v, want the completed record", res.Begun, err)
	}
	wantServed(t, s)
}

// A process dies between its look at the clock and the mark, and the clock is right again.
func TestJumpIsSeenAfterTheProcessThatSawIt(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Begin", "Get", "Ping"} {
		m := startMini(t)
		client := connect(t, "redis://"+m.Addr())
		s := open(t, client)
		key := pay(t, s, time.Hour)
		m.step(2 * time.Hour)
		ctx, die := context.WithCancel(t.Context())
		client.AddHook(&hook{at: 2, before: die})
		if err := calls[method](ctx, s); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() of a process that dies = %v, want %v", method, err, driver.ErrUnavailable)
		}
		m.step(0)
		wantJump(t, open(t, connect(t, "redis://"+m.Addr())), key)
	}
}

// A store that accepts losses by itself accepts a jump too, because markers remember the keys.
func TestJumpIsAcceptedWithoutAnOperator(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{"with a witness": {witnessed(new(register))}, "without": nil} {
		m := startMini(t)
		accepted := 0
		s := open(t, connect(t, "redis://"+m.Addr()), append(opts, WithLossAcceptance(func(_ context.Context, n int) { accepted += n }))...)
		key := pay(t, s, time.Hour)
		m.step(2 * time.Hour)
		await(t, "the acceptance "+name, func() error { // a call waits for it for a limited time
			res, err := s.Begin(t.Context(), key.id, key.req)
			if err == nil && !res.Begun {
				err = fmt.Errorf("the record is %v", res.Record.State)
			}
			return err
		})
		if accepted != Shards {
			t.Errorf("accepted %d shards %s, want %d", accepted, name, Shards)
		}
		m.step(0) // the clock goes back, which is no loss
		wantServed(t, s)
	}
}
