package redisstore

import (
	"context"
	"testing"
	"time"
)

func TestNewRefusesReplicas(t *testing.T) {
	client, err := Connect("redis://" + startMini(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, opt := range map[string]Option{
		"none":                           WithReplicas(0, time.Second),
		"no time":                        WithReplicas(1, 0),
		"longer than half the read time": WithReplicas(1, ioTimeout/2+1),
	} {
		if _, err := New(t.Context(), client, quiet(), opt); err == nil {
			t.Errorf("New() with %s = <nil>, want a refusal", name)
		}
	}
	for _, timeout := range []time.Duration{time.Millisecond, ioTimeout / 2} {
		if _, err := New(t.Context(), client, quiet(), WithReplicas(1, timeout)); err != nil {
			t.Errorf("New() with %v for replicas = %v, want <nil>", timeout, err)
		}
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

// While replicas fall short one Begin waits with patience: a pool full of
// waiting connections would keep replays and completions out.
func TestOneBeginIsPatientWhileReplicasFallShort(t *testing.T) {
	var g gate
	want := func(name string, d time.Duration) func() {
		t.Helper()
		got, leave := g.enter(time.Second)
		if got != d {
			t.Errorf("%s waits for %v, want %v", name, got, d)
		}
		return leave
	}
	want("a Begin while all is well", time.Second)()
	g.short.Store(true)
	first := want("the first Begin after a shortfall", time.Second)
	want("a second one", time.Second/hurry)()
	want("a third one", time.Second/hurry)()
	first()
	want("the next one", time.Second)()
	g.short.Store(false)
	want("a Begin when all is well again", time.Second)()
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
