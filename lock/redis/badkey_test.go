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

// spoil has somebody put a list where a lock is, or would be. Redis answers
// every script of that key with an error.
func spoil(t *testing.T, r *testserver.Redis, l *Locker, id driver.KeyID) {
	t.Helper()
	do(t, r, "DEL", l.keeper.keys.Lock(id))
	do(t, r, "RPUSH", l.keeper.keys.Lock(id), "not a lock")
}

// An answer that is about one key says nothing of the others: while that key
// fails, again and again, they are served, and nobody is told that Redis did not
// answer.
func TestBadKeySparesTheOthers(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 1, r.Addr()), WithTTL(time.Minute))
	bad := request()
	spoil(t, r, l, bad.KeyID)
	lock, held := leasing.Lock{ID: request().KeyID}, take(t, l, request())
	ruined := take(t, l, driver.LockRequest{KeyID: lock.ID})
	spoil(t, r, l, lock.ID)
	for step, ask := range map[string]func() error{
		"TryAcquire() of it": func() error { _, err := l.TryAcquire(t.Context(), again(bad)); return err },
		"Check() of it":      func() error { _, err := ruined.Check(t.Context()); return err },
		"a heartbeat of it": func() error {
			return unavailable("heartbeat", l.keeper.Extend(t.Context(), []leasing.Lock{lock})[0])
		},
		"a release of it": func() error {
			_, err := l.keeper.Remove(t.Context(), lock, true)
			return unavailable("release", err)
		},
	} {
		for range 20 {
			if err := ask(); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, leasing.ErrNoAnswer) || errors.Is(err, leasing.ErrGone) {
				t.Fatalf("%s = %v, want the server's answer", step, err)
			}
			lease, err := l.TryAcquire(t.Context(), request())
			if err != nil {
				t.Fatalf("TryAcquire() of another key after %s = %v, want a lease", step, err)
			}
			release(t, lease)
			if left, err := held.Check(t.Context()); err != nil || left <= 0 {
				t.Fatalf("Check() of another key after %s = %v, %v, want time left", step, left, err)
			}
		}
	}
	do(t, r, "DEL", l.keeper.keys.Lock(bad.KeyID), l.keeper.keys.Lock(lock.ID))
	release(t, take(t, l, again(bad)))
}

// An inspector that got no answer does not say that a lock is free.
func TestInspectorTellsOfItsFailure(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 1, r.Addr()))
	bad := request()
	spoil(t, r, l, bad.KeyID)
	i, err := NewInspector(l.keeper.client)
	if err != nil {
		t.Fatal(err)
	}
	for name, inspector := range map[string]driver.LockInspector{"locker": l, "inspector": i} {
		if h, found, err := inspector.HeldBy(t.Context(), request().KeyID); found || err != nil {
			t.Errorf("%s: HeldBy() of a free lock = %+v, %v, %v, want none", name, h, found, err)
		}
		if domain, err := inspector.DomainOf(t.Context(), request().KeyID); domain != "" || err != nil {
			t.Errorf("%s: DomainOf() where no lock was taken = %q, %v, want none", name, domain, err)
		}
		if h, found, err := inspector.HeldBy(t.Context(), bad.KeyID); !errors.Is(err, driver.ErrUnavailable) || found {
			t.Errorf("%s: HeldBy() of a bad key = %+v, %v, %v, want %v", name, h, found, err, driver.ErrUnavailable)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, inspector := range map[string]driver.LockInspector{"locker": l, "inspector": i} {
		if domain, err := inspector.DomainOf(ended, bad.KeyID); !errors.Is(err, driver.ErrUnavailable) || domain != "" {
			t.Errorf("%s: DomainOf() = %q, %v, want %v", name, domain, err, driver.ErrUnavailable)
		}
	}
}
