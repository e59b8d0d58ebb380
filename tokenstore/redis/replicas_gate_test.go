package redisstore

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// waits answers each WAIT in the place of miniredis, which has no replicas.
type waits struct {
	fail  error // the answer, if it is set
	acks  atomic.Int64
	asked chan int64                    // the time-outs in milliseconds
	hold  atomic.Pointer[chan struct{}] // a patient WAIT is answered when it is closed
}

func (w *waits) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (w *waits) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (w *waits) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if wait, ok := cmd.(*goredis.Cmd); ok && cmd.Name() == "wait" {
				timeout := wait.Args()[2].(int64)
				w.asked <- timeout
				if hold := w.hold.Load(); hold != nil && timeout == gateTimeout.Milliseconds() {
					<-*hold
				}
				wait.SetErr(w.fail)
				wait.SetVal(w.acks.Load())
			}
		}
		return err
	}
}

const gateTimeout = time.Second

// While replicas fall short, one Begin at a time waits with patience. All do once they are
// back.
func TestPatienceOfBeginsFollowsTheReplicas(t *testing.T) {
	client := connect(t, "redis://"+startMini(t).Addr())
	w := &waits{asked: make(chan int64, 10)}
	w.acks.Store(1)
	client.AddHook(w)
	s := open(t, client, WithReplicas(1, gateTimeout))
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, s, id, req)
	for len(w.asked) > 0 { // twice, because the server did not know the script
		<-w.asked
	}
	patience := func(name string, want time.Duration) {
		t.Helper()
		if got := <-w.asked; got != want.Milliseconds() {
			t.Errorf("%s waits for %d ms, want %v", name, got, want)
		}
	}
	// beside begins a second attempt while the first one waits.
	beside := func(begin func(), second time.Duration) {
		t.Helper()
		hold, first := make(chan struct{}), make(chan struct{})
		w.hold.Store(&hold)
		go func() { begin(); close(first) }()
		patience("the first Begin", gateTimeout)
		other := make(chan struct{})
		go func() { begin(); close(other) }()
		patience("the second Begin", second)
		w.hold.Store(nil)
		close(hold)
		<-first
		<-other
	}
	refused := func() { id, req := newAttempt(driver.ClientKey); wantRefused(t, s, id, req) }
	begun := func() {
		id, req := newAttempt(driver.ClientKey)
		if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
			t.Errorf("Begin(%v) = %v, %v, want begun", id, res.Begun, err)
		}
	}

	beside(begun, gateTimeout)
	w.acks.Store(0)
	for range 3 {
		refused()
		patience("a Begin by itself", gateTimeout)
	}
	beside(refused, gateTimeout/hurry)
	w.acks.Store(1)
	begun()
	patience("the first Begin with a replica", gateTimeout)
	beside(begun, gateTimeout)
}

// A Begin that does not learn of its replicas is refused.
func TestBeginWithoutAnAnswerToWait(t *testing.T) {
	client := connect(t, "redis://"+startMini(t).Addr())
	client.AddHook(&waits{asked: make(chan int64, 10), fail: errors.New("no answer")})
	s := open(t, client, WithReplicas(1, gateTimeout))
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); res.Begun || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Begin() = %v, %v, want %v", res.Begun, err, driver.ErrUnavailable)
	}
}
