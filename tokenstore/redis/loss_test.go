package redisstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// register is a witness in memory.
type register struct {
	mu      sync.Mutex
	data    []byte
	version int64
	loads   int
	onSave  func() // called before a save, without the lock
	fail    error  // of every call
	full    error  // of Save
}

func (r *register) Load(context.Context) ([]byte, int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads++
	return r.data, r.version, r.fail
}

func (r *register) Save(_ context.Context, data []byte, version int64) error {
	if r.onSave != nil {
		f := r.onSave
		r.onSave = nil
		f()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fail != nil:
		return r.fail
	case r.full != nil:
		return r.full
	case version != r.version:
		return errors.New("conflict")
	}
	r.data, r.version = data, version+1
	return nil
}

// wantLost requires that the store refuses new keys.
func wantLost(t *testing.T, s *Store) {
	t.Helper()
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrStoreLost) || res.Begun {
		t.Errorf("Begin(%v) = %v, %v, want %v", id, res.Begun, err, driver.ErrStoreLost)
	}
	if _, err := s.Issue(t.Context(), id, time.Hour); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Issue(%v) = %v, want %v", id, err, driver.ErrStoreLost)
	}
	if _, err := s.Get(t.Context(), id); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Get(%v) = %v, want %v", id, err, driver.ErrStoreLost)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Ping() = %v, want %v", err, driver.ErrStoreLost)
	}
}

// mustAccept has an operator accept the loss of some shards.
func mustAccept(t *testing.T, s *Store, shards int) {
	t.Helper()
	if n, err := s.AcceptLoss(t.Context()); err != nil || n != shards {
		t.Errorf("AcceptLoss() = %d, %v, want %d", n, err, shards)
	}
}

// wantWorking requires that the store takes fresh keys.
func wantWorking(t *testing.T, s *Store) {
	t.Helper()
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
		t.Errorf("Begin(%v) = %v, %v, want begun", id, res.Begun, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}
}

func TestFlushedRedisIsRefusedUntilAccepted(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (addr string, flush func()){
		"miniredis": func(t *testing.T) (string, func()) {
			m := startMini(t)
			return "redis://" + m.Addr(), m.FlushAll
		},
		"redis": func(t *testing.T) (string, func()) {
			r := testserver.StartRedis(t)
			return r.URL(), func() {
				if _, err := r.Do("FLUSHALL"); err != nil {
					t.Fatal(err)
				}
			}
		},
		"redis that restarts empty": func(t *testing.T) (string, func()) {
			r := testserver.StartRedis(t)
			return r.URL(), r.Restart
		},
		"cluster that loses everything": func(t *testing.T) (string, func()) {
			c := testserver.StartRedisCluster(t, 3)
			return clusterAddr(c), func() {
				for _, n := range c.Nodes() {
					if _, err := n.Do("FLUSHALL"); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr, flush := start(t)
			w := new(register)
			s := open(t, connect(t, addr), witnessed(w), withRecheck(0))
			other := open(t, connect(t, addr), witnessed(w), withRecheck(0))
			id, req := newAttempt(driver.ClientKey)
			a := mustBegin(t, s, id, req)
			flush()
			wantLost(t, s)
			wantLost(t, other)
			wantLost(t, open(t, connect(t, addr), witnessed(w))) // a process that starts now

			// A holder may store its outcome after the loss.
			st := completion(a, "paid")
			st.Repair, st.LeaseTrusted = &driver.Repair{Route: req.Route, Fingerprint: req.Fingerprint, Started: time.Now()}, true
			if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled {
				t.Errorf("Settle(%v) with Restore = %v, %v, want settled", id, res.Settled, err)
			}
			if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateCompleted {
				t.Errorf("Get(%v) of what is there = %v, %v, want completed", id, rec.State, err)
			}

			mustAccept(t, s, Shards)
			wantWorking(t, s)
			wantWorking(t, other) // notices by itself
			wantWorking(t, open(t, connect(t, addr), witnessed(w)))
			version := w.at()
			if n, err := s.AcceptLoss(t.Context()); err != nil || n != 0 || w.at() != version {
				t.Errorf("AcceptLoss() again = %d, %v, and %d writes to the witness, want 0 and none", n, err, w.at()-version)
			}
			wantWorking(t, other)
		})
	}
}

// A Begin sent before the loss arrives after its acceptance, and its shard is in use again. It carries
// the old incarnation and must not start anything.
func TestBeginFromBeforeTheLossIsRefused(t *testing.T) {
	m := startMini(t)
	w := new(register)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w))
	before := &register{data: w.data, version: w.version} // still has the old incarnations
	m.FlushAll()
	if _, err := s.AcceptLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := open(t, connect(t, "redis://"+m.Addr()), witnessed(before))
	wantLost(t, late)
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, s, id, req)
	id[len(id)-1]++ // in the same shard
	if _, err := late.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Begin(%v) = %v in a shard that is in use again, want %v", id, err, driver.ErrStoreLost)
	}
}

func TestOneLostShardIsRefusedAlone(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(new(register)))
	id, req := newAttempt(driver.ClientKey)
	m.Del(s.keys.incarnation(redisserver.ShardOf(id)))
	if _, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Begin(%v) = %v, want %v", id, err, driver.ErrStoreLost)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Ping() = %v, want %v", err, driver.ErrStoreLost)
	}
	id[0]++
	mustBegin(t, s, id, req)
	mustAccept(t, s, 1)
	wantWorking(t, s)
}

// Without a witness an operator tells each process. The second one adopts what the first
// one made, so both go on.
func TestWithoutAWitnessEachProcessIsTold(t *testing.T) {
	m := startMini(t)
	stores := []*Store{open(t, connect(t, "redis://"+m.Addr())), open(t, connect(t, "redis://"+m.Addr()))}
	m.FlushAll()
	for _, s := range stores {
		wantLost(t, s)
		mustAccept(t, s, Shards)
	}
	wantWorking(t, stores[0])
	wantWorking(t, stores[1])
}

// The same after a process that starts meanwhile has made incarnations that name no loss.
func TestWithoutAWitnessNewIncarnationsAreAdopted(t *testing.T) {
	m := startMini(t)
	running := open(t, connect(t, "redis://"+m.Addr()))
	m.FlushAll()
	starting := open(t, connect(t, "redis://"+m.Addr()))
	wantLost(t, running)
	mustAccept(t, running, Shards)
	wantWorking(t, running)
	wantWorking(t, starting)
}

// Without a witness a process that starts after the loss cannot notice it. It can say so.
func TestEmptyRedisWithoutAWitnessIsWarnedOf(t *testing.T) {
	m := startMini(t)
	warned := func(opts ...Option) bool {
		var log bytes.Buffer
		open(t, connect(t, "redis://"+m.Addr()), append(opts, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
		return strings.Contains(log.String(), "has no records")
	}
	for _, step := range []struct {
		name string
		opts []Option
		want bool
	}{
		{"first start, read-only", []Option{WithReadOnly()}, false},
		{"first start", nil, true},
		{"second start", nil, false},
		{"after a loss", nil, true},
		{"after a loss, with a witness", []Option{witnessed(new(register))}, false},
	} {
		if strings.HasPrefix(step.name, "after") {
			m.FlushAll()
		}
		if got := warned(step.opts...); got != step.want {
			t.Errorf("%s: warned %v, want %v", step.name, got, step.want)
		}
	}
}

func TestRedisIsAdoptedByANewWitness(t *testing.T) {
	m := startMini(t)
	before := open(t, connect(t, "redis://"+m.Addr()))
	w := new(register)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w))
	id, _ := newAttempt(driver.ClientKey)
	has, err := m.Get(s.keys.incarnation(redisserver.ShardOf(id)))
	if err != nil || !strings.Contains(string(w.data), has) {
		t.Errorf("the witness has %q, %v, want the incarnation %q in it", w.data, err, has)
	}
	wantWorking(t, before)
	wantWorking(t, s)
}

func TestFirstStartOfManyAtOnceAgrees(t *testing.T) {
	m := startMini(t)
	w := new(register)
	stores := make([]*Store, 8)
	var wg sync.WaitGroup
	for i := range stores {
		client := connect(t, "redis://"+m.Addr())
		wg.Go(func() {
			s, err := New(t.Context(), client, quiet(), witnessed(w))
			if err != nil {
				t.Errorf("New() = %v, want <nil>", err)
				return
			}
			stores[i] = s
		})
	}
	wg.Wait()
	for _, s := range stores {
		if s != nil {
			wantWorking(t, s)
		}
	}
}

func TestTwoAcceptAtOnce(t *testing.T) {
	m := startMini(t)
	w := new(register)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withRecheck(0))
	other := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withRecheck(0))
	m.FlushAll()
	w.onSave = func() {
		mustAccept(t, other, Shards)
	}
	mustAccept(t, s, 0)
	wantWorking(t, s)
	wantWorking(t, other)
}

// Every request asks a lost store, but not its witness.
func TestWitnessIsAskedRarely(t *testing.T) {
	m := startMini(t)
	w := new(register)
	s := open(t, connect(t, "redis://"+m.Addr()), witnessed(w), withRecheck(time.Hour), withReread(time.Hour))
	m.FlushAll()
	before := w.loads
	for range 20 {
		wantLost(t, s)
	}
	if got := w.loads - before; got != 1 {
		t.Errorf("witness was asked %d times, want 1", got)
	}
}
