package redislock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// calls is how often the server has run a command.
func calls(t *testing.T, r *testserver.Redis, command string) int {
	t.Helper()
	for line := range strings.Lines(strings.Join(do(t, r, "INFO", "commandstats"), "\n")) {
		if of, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			count, _, _ := strings.Cut(of, ",")
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// A lock that somebody made stay, without a time to live, is held: its waiters
// wait, and ask no more often than for any other.
func TestWaitForALockThatStays(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l, req := open(t, connect(t, 1, r.Addr())), request()
	do(t, r, "SET", l.keeper.keys.Lock(req.KeyID), "by hand")
	wantLocked(t, l, again(req))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	freed, began := make(chan error, 1), time.Now()
	go func() { freed <- l.Wait(ctx, req.KeyID) }()
	asked := 0
	for asked < 14 { // the pause between two looks is the longest by then
		select {
		case err := <-freed:
			t.Fatalf("Wait() = %v after %d looks at a lock that is held", err, asked)
		case <-time.After(leasing.FirstLook):
			asked = calls(t, r, "pttl")
		}
	}
	// At its fastest: while the pause doubles, and then every half of the
	// longest, with one more look for a late timer.
	while := time.Since(began)
	most := 1 + int(while/(leasing.MostLook/2))
	for pause := leasing.FirstLook; pause < leasing.MostLook; pause *= 2 {
		most++
	}
	if asked > most {
		t.Errorf("the server was asked %d times in %v, want %d at most", asked, while, most)
	}
	do(t, r, "DEL", l.keeper.keys.Lock(req.KeyID))
	if err := <-freed; err != nil {
		t.Errorf("Wait() for a lock that was freed by hand = %v, want <nil>", err)
	}
	release(t, take(t, l, again(req)))
}

// The deadline of a caller ends while an answer is on its way. The client library ends the read
// by an error of the network. That is no outage, so others still get their locks.
func TestDeadlineOfACallerIsNoOutage(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartRedisProxy(t, sharedAddr(t))
	l := open(t, connect(t, 1, proxy.Addr()), WithPrefix(testserver.KeyPrefix(t)), WithTTL(longTTL))
	lease := take(t, l, request())
	for range 5 {
		proxy.Freeze(testserver.Both)
		ctx, cancel := context.WithTimeout(t.Context(), leasing.ProbePause/2)
		if _, err := lease.Check(ctx); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Check() = %v without an answer, want %v", err, driver.ErrUnavailable)
		}
		cancel()
		proxy.Restore()
		release(t, take(t, l, request()))
	}
}

// A server that does not answer must not keep a caller that has left.
func TestWaitEndsWithItsContextWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	const silence, longest = 20 * time.Second, 4 * time.Second // the client gives up a read after 5 s
	r := testserver.StartRedis(t)
	l, admin := open(t, connect(t, 2, r.Addr())), connect(t, 1, r.Addr())
	req := request()
	take(t, l, req)
	if err := admin.Do(t.Context(), "client", "pause", silence.Milliseconds(), "all").Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	err := l.Wait(ctx, req.KeyID)
	if took := time.Since(began); !errors.Is(err, context.Canceled) || took > longest {
		t.Errorf("Wait() = %v after %v, want %v at once", err, took, context.Canceled)
	}
}
