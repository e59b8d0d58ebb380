package zookeeper

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestWaitersShareAWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.other)
	ctx, cancel := context.WithCancel(bounded(t))
	errs := make(chan error, 64)
	for i := range 64 {
		go func() {
			if i%2 == 0 {
				errs <- r.l.Wait(ctx, r.id)
			} else {
				errs <- r.l.Wait(bounded(t), r.id)
			}
		}()
	}
	s := sessionOf(r.c)
	until(t, "a watch", func() bool { return len(watchedBy(s)) > 0 })
	if n := len(watchedBy(s)); n != 1 {
		t.Errorf("%d watches for one path, want 1", n)
	}
	cancel()
	for range 32 {
		if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Wait() = %v, want %v alone", err, context.Canceled)
		}
	}
	r.release(lease)
	for range 32 {
		if err := <-errs; err != nil {
			t.Errorf("Wait() = %v", err)
		}
	}
	until(t, "no watch left", func() bool { return len(watchedBy(s)) == 0 })
}

// A lock that is released while the waiters' connection is down, and taken
// again by others.
func TestWaitAcrossReconnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.other)
	woken := make(chan error, 1)
	go func() { woken <- r.l.Wait(bounded(t), r.id) }()
	until(t, "watch", func() bool { return len(watchedBy(sessionOf(r.c))) == 1 })
	connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
	r.proxy.Cut()
	await(t, "reconnect", connect.Held())
	r.release(lease)
	again := r.take(r.other)
	connect.Release()
	if err := <-woken; err != nil {
		t.Errorf("Wait() = %v", err)
	}
	r.release(again)
}

// A lock of the same process becomes free while the connection is down. The waiter asks no server
// about the lock. It returns when the caller can take the lock.
func TestWaitWithinAProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	claim, _, err := sessionOf(r.c).table.Claim(r.path)
	if err != nil {
		t.Fatal(err)
	}
	requests := r.proxy.Count(r.path)
	waits := make(chan struct{})
	ctx := signalContext{bounded(t), sync.OnceFunc(func() { close(waits) })}
	woken := make(chan error, 1)
	go func() {
		err := r.l.Wait(ctx, r.id)
		_, down := r.c.usable()
		woken <- errors.Join(err, down)
	}()
	await(t, "the waiter", waits)
	connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
	r.proxy.Cut()
	await(t, "reconnect", connect.Held())
	claim.Free()
	connect.Release()
	if err := <-woken; err != nil {
		t.Errorf("Wait() = %v, want <nil> and a usable client", err)
	}
	if n := requests.Seen().Total(); n != 0 {
		t.Errorf("%d requests about a lock of this process, want 0", n)
	}
}

// The session of a waiter ends. The caller tries again in the next one, which may tell more.
func TestWaitOverTheEndOfASession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.other)
	waited := make(chan error, 1)
	go func() { waited <- r.l.Wait(bounded(t), r.id) }()
	until(t, "a watch", func() bool { return len(watchedBy(sessionOf(r.c))) == 1 })
	killSession(t, r.c, r.proxy)
	if err := <-waited; err != nil {
		t.Errorf("Wait() = %v, want <nil>", err)
	}
	r.release(lease)
}

// A lock that may not be read is not called free.
func TestWaitForALockThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	for name, watch := range map[string]bool{"at the first read": false, "at the watch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			lease := r.take(r.other)
			read := r.proxy.HoldNext(onRead(r.path))
			if watch {
				read.Release()
				read = r.proxy.HoldNext(onWatch(r.path))
			}
			waited := make(chan error, 1)
			go func() { waited <- r.l.Wait(bounded(t), r.id) }()
			await(t, "read", read.Held())
			if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
				t.Fatal(err)
			}
			read.Release()
			if err := <-waited; !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Wait() = %v, want %v and %v", err, ErrNotPermitted, driver.ErrUnavailable)
			}
			if holder, there, err := r.l.HeldBy(bounded(t), r.id); !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("HeldBy() = %v, %t, %v; want %v and %v", holder, there, err, ErrNotPermitted, driver.ErrUnavailable)
			}
			r.release(lease)
		})
	}
}
