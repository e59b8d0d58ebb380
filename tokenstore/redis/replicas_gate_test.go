package redisstore

import (
	"context"
	"errors"
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

// hook answers.
func (w *waits) hook() *hook {
	return &hook{after: func(cmds []goredis.Cmder) {
		for _, cmd := range cmds {
			if wait, ok := cmd.(*goredis.Cmd); ok && cmd.Name() == "wait" && len(cmds) > 1 { // with a Begin
				timeout := wait.Args()[2].(int64)
				w.asked <- timeout
				if hold := w.hold.Load(); hold != nil && timeout == gateTimeout.Milliseconds() {
					<-*hold
				}
				wait.SetErr(w.fail)
				wait.SetVal(w.acks.Load())
			}
		}
	}}
}

const gateTimeout = time.Second

// While replicas fall short, one Begin at a time waits with patience. All do once they are
// back.
func TestPatienceOfBeginsFollowsTheReplicas(t *testing.T) {
	client := connect(t, "redis://"+startMini(t).Addr())
	w := &waits{asked: make(chan int64, 10)}
	w.acks.Store(1)
	client.AddHook(w.hook())
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
	client.AddHook((&waits{asked: make(chan int64, 10), fail: errors.New("no answer")}).hook())
	s := open(t, client, WithReplicas(1, gateTimeout))
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); res.Begun || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Begin() = %v, %v, want %v", res.Begun, err, driver.ErrUnavailable)
	}
}

// A WAIT of 0 would block for ever.
func TestWaitIsNeverForEver(t *testing.T) {
	for name, left := range map[string]time.Duration{"over": -time.Second, "now": 0, "little": time.Microsecond, "some": 90 * time.Millisecond} {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(left))
		got := within(ctx, time.Second)
		cancel()
		if got < time.Millisecond || left > 10*time.Millisecond && got >= left {
			t.Errorf("%s: within(%v) = %v, want 1ms or more, and less than is left", name, left, got)
		}
	}
	if got := within(context.Background(), time.Second); got != time.Second {
		t.Errorf("within() without a deadline = %v, want 1s", got)
	}
	if got := within(context.Background(), time.Microsecond); got != time.Millisecond {
		t.Errorf("within() of a hurried Begin = %v, want 1ms", got)
	}
}

func TestAttachedReplicas(t *testing.T) {
	for info, want := range map[string]int{
		"": 0,
		"# Replication\r\nrole:master\r\nconnected_slaves:3\r\n" +
			"slave0:ip=127.0.0.1,port=1,state=online,offset=4,lag=0\r\n" +
			"slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\n" +
			"slave2:ip=127.0.0.1,port=3,state=online,offset=4,lag=11\r\n" +
			"slave10:ip=::1,port=4,state=online,offset=4,lag=10,type=main\r\n": 2,
		"slave_repl_offset:1\r\nslave_priority:100\r\nslaves:state=online,lag=0\r\n": 0,
		"slave0:state=online\r\n": 0,
	} {
		if got := attached(info); got != want {
			t.Errorf("attached(%q) = %d, want %d", info, got, want)
		}
	}
}
