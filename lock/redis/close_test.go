package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestCloseGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	prefix := freshPrefix(t)
	l, other := open(t, connect(t, 2, sharedAddr(t)), prefix), open(t, connect(t, 2, sharedAddr(t)), prefix)
	kept, left := request(), request()
	lease := take(t, l, kept)
	take(t, l, left).ReleaseInBackground()
	waiting := make(chan error, 1)
	busy := request()
	take(t, other, busy)
	go func() { waiting <- l.Wait(t.Context(), busy.KeyID) }()
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v, want <nil>", err)
	}
	wantLost(t, lease)
	for _, req := range []driver.LockRequest{kept, left} {
		release(t, take(t, other, again(req)))
	}
	release(t, lease)
	if err := <-waiting; !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Wait() when closed = %v, want %v", err, driver.ErrUnavailable)
	}
	wantClosed(t, l)
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("Close() again = %v, want <nil>", err)
	}
	l.Abandon()
}

func wantClosed(t *testing.T, l *Locker) {
	t.Helper()
	req := request()
	if lease, err := l.TryAcquire(t.Context(), req); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() when closed = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	if err := l.Wait(t.Context(), req.KeyID); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Wait() when closed = %v, want %v", err, driver.ErrUnavailable)
	}
	if err := l.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Ping() when closed = %v, want %v", err, driver.ErrUnavailable)
	}
}

// What an abandoned locker, or a dead process, held stays locked until it has
// timed out.
func TestAbandonLeavesLocksToTimeOut(t *testing.T) {
	t.Parallel()
	prefix := freshPrefix(t)
	l, other := open(t, connect(t, 2, sharedAddr(t)), prefix, WithTTL(2*time.Second)), open(t, connect(t, 2, sharedAddr(t)), prefix)
	req := request()
	lease := take(t, l, req)
	l.Abandon()
	wantLost(t, lease)
	wantClosed(t, l)
	wantLocked(t, other, again(req))
	if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release() of an abandoned lease = %v, want %v", err, driver.ErrUnavailable)
	}
	release(t, takeSoon(t, other, again(req)))
}

func TestCloseDoesNotHang(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 2, r.Addr()))
	lease := take(t, l, request())
	r.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close() with Redis stopped = %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("Close() took %v, want little more than its deadline", took)
	}
	wantLost(t, lease)
}

// While Redis is known not to answer, callers are refused at once; soon after it
// answers again, they are served.
func TestOutage(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 2, r.Addr()))
	held := request()
	take(t, l, held)
	r.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := l.Ping(ctx); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Ping() with Redis stopped = %v, want %v", err, driver.ErrUnavailable)
	}
	probing := make(chan error, 1)
	go func() { // finds out
		_, err := l.TryAcquire(ctx, request())
		probing <- err
	}()
	if err := <-probing; !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() with Redis stopped = %v, want %v", err, driver.ErrUnavailable)
	}
	refused := 0
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := l.TryAcquire(ctx, request())
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() with Redis stopped = %v, want %v", err, driver.ErrUnavailable)
		}
		if errors.Is(err, leasing.ErrNoAnswer) {
			refused++
		}
		cancel()
	}
	if refused < 50 {
		t.Errorf("%d of 100 callers were refused at once, want most", refused)
	}
	r.Resume()
	release(t, takeEventually(t, l, request()))
	if err := l.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}
}
