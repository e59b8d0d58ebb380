package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// A process dies before any command of its first start. It says so, and the next process
// goes on.
func TestFirstStartThatDiesIsGoneOnWith(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func() []Option{
		"with a witness": func() []Option { return []Option{quiet(), witnessed(new(register))} },
		"without":        func() []Option { return []Option{quiet()} },
	} {
		t.Run(name, func(t *testing.T) {
			for at := int64(1); ; at++ {
				m, opts := startMini(t), options()
				client := connect(t, "redis://"+m.Addr())
				ctx, die := context.WithCancel(t.Context())
				h := &hook{at: at, before: die}
				client.AddHook(h)
				_, err := New(ctx, client, opts...)
				die()
				if h.n.Load() < at {
					if err != nil || at < 4 {
						t.Errorf("New() with %d commands = %v, want <nil> and some more", at-1, err)
					}
					return
				}
				if !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("New() that dies before command %d = %v, want %v", at, err, driver.ErrUnavailable)
				}
				wantWorking(t, open(t, connect(t, "redis://"+m.Addr()), opts...))
			}
		})
	}
}

// An operator's call fails before any of its commands. It says so, and can be repeated.
func TestAcceptLossThatFailsIsRepeated(t *testing.T) {
	for at := int64(1); ; at++ {
		m := startMini(t)
		client := connect(t, "redis://"+m.Addr())
		s := open(t, client, witnessed(new(register)), withRecheck(0))
		m.FlushAll()
		ctx, end := context.WithCancel(t.Context())
		h := &hook{at: at, before: end}
		client.AddHook(h)
		_, err := s.AcceptLoss(ctx)
		end()
		if h.n.Load() < at {
			if err != nil || at < 3 {
				t.Errorf("AcceptLoss() with %d commands = %v, want <nil> and some more", at-1, err)
			}
			return
		}
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("AcceptLoss() that fails before command %d = %v, want %v", at, err, driver.ErrUnavailable)
		}
		mustAccept(t, s, Shards)
		wantWorking(t, s)
	}
}

// A witness that is away, or can be read and not written, ends a first start and an acceptance with its own error. Both
// can be repeated.
func TestWitnessThatFails(t *testing.T) {
	for name, fail := range map[string]func(w *register, err error){
		"it is away": func(w *register, err error) { w.fail = err },
		"it is full": func(w *register, err error) { w.full = err },
	} {
		t.Run(name, func(t *testing.T) {
			m, w, broken := startMini(t), new(register), errors.New("witness is broken")
			client := connect(t, "redis://"+m.Addr())
			fail(w, broken)
			if _, err := New(t.Context(), client, quiet(), witnessed(w)); !errors.Is(err, broken) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("New() = %v, want %v and %v", err, broken, driver.ErrUnavailable)
			}
			fail(w, nil)
			s := open(t, client, witnessed(w), withRecheck(0))
			m.FlushAll()
			fail(w, broken)
			if _, err := s.AcceptLoss(t.Context()); !errors.Is(err, broken) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("AcceptLoss() = %v, want %v and %v", err, broken, driver.ErrUnavailable)
			}
			wantLost(t, s)
			fail(w, nil)
			wantLost(t, s)
			mustAccept(t, s, Shards)
			wantWorking(t, s)
		})
	}
}

// A running process goes on with what it knows if the witness has no document any more. An
// operator's call writes it anew.
func TestWitnessThatLosesItsDocument(t *testing.T) {
	m := startMini(t)
	w := new(register)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withReread(0))
	w.data, w.version = nil, 0
	wantWorking(t, s)
	if n, err := s.AcceptLoss(t.Context()); err != nil || n != 0 || w.data == nil {
		t.Errorf("AcceptLoss() = %d, %v, and the witness has %q, want 0 and a document", n, err, w.data)
	}
	wantWorking(t, s)
}

// Other processes are faster each time, at the witness or with one more loss. Both calls end
// with an error.
func TestRacesThatNeverEnd(t *testing.T) {
	for name, race := range map[string]func(m *mini, w *register, client goredis.UniversalClient){
		"at the witness": func(_ *mini, w *register, _ goredis.UniversalClient) {
			var faster func()
			faster = func() { w.version++; w.onSave = faster }
			faster()
		},
		"with one more loss": func(m *mini, _ *register, client goredis.UniversalClient) { client.AddHook(&hook{before: m.FlushAll}) },
	} {
		t.Run(name, func(t *testing.T) {
			m, w := startMini(t), new(register)
			client := connect(t, "redis://"+m.Addr())
			s := open(t, client, witnessed(w), withReread(time.Hour))
			m.FlushAll()
			race(m, w, client)
			if _, err := s.AcceptLoss(t.Context()); err == nil {
				t.Error("AcceptLoss() = <nil>, want an error")
			}
			w.data = nil // as for a first start
			if _, err := New(t.Context(), client, quiet(), witnessed(w)); err == nil {
				t.Error("New() = <nil>, want an error")
			}
		})
	}
}
