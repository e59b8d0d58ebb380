package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Many leases live on by few requests, and a server that forgot the script does
// not end them.
func TestHeartbeatKeepsLeases(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string]func(*testing.T) []string{
		"server":  func(t *testing.T) []string { return []string{testserver.StartRedis(t).Addr()} },
		"cluster": func(t *testing.T) []string { return testserver.StartRedisCluster(t, 3).Addrs() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl, n = 6 * time.Second, 2*leasing.MaxBatch + 1
			client := connect(t, 2, addrs(t)...)
			l := open(t, client, WithTTL(ttl))
			leases := make([]driver.Lease, n)
			for i := range leases {
				leases[i] = take(t, l, request())
			}
			if err := client.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			end := leaseclock.Now().Add(ttl + ttl/2)
			outlive(t, end, leases...)
			for _, lease := range leases {
				lease.ReleaseInBackground()
			}
			if err := l.Close(t.Context()); err != nil {
				t.Errorf("Close() = %v, want <nil>", err)
			}
		})
	}
}

// The connection goes mute, or the server stops: the lease is over before
// anybody else can have the lock, and afterwards it stays so.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]func(*testserver.Redis, *testserver.Proxy) (end func()){
		"black hole": func(_ *testserver.Redis, p *testserver.Proxy) func() {
			p.BlackHole(testserver.Both)
			return p.Restore
		},
		"frozen": func(_ *testserver.Redis, p *testserver.Proxy) func() {
			p.Freeze(testserver.ToServer)
			return p.Restore
		},
		"server stopped": func(r *testserver.Redis, _ *testserver.Proxy) func() {
			r.Pause()
			return r.Resume
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testserver.StartRedis(t)
			proxy := testserver.StartRedisProxy(t, r.Addr())
			l, other := open(t, connect(t, 2, proxy.Addr()), WithTTL(4*time.Second)), open(t, connect(t, 2, r.Addr()))
			req := request()
			lease := take(t, l, req)
			end := silence(r, proxy)
			defer end()
			if name == "server stopped" { // nobody else can ask meanwhile
				await(t, "Done() of the lease", lease.Done())
				end()
			}
			next := takeSoon(t, other, again(req))
			select {
			case <-lease.Done():
			default:
				t.Errorf("another owner has the lock under %s while %s is believed in", next.Fence(), lease.Fence())
			}
			wantLost(t, lease)
			if !lease.Fence().Before(next.Fence()) {
				t.Errorf("Fence() = %s after %s, want a greater one", next.Fence(), lease.Fence())
			}
			end()
			release(t, lease)
			wantLocked(t, other, again(req))
			release(t, next)
		})
	}
}

// A lease whose lock another owner has got by force is lost, and leaves that
// owner alone.
func TestLockOfAnotherOwner(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	lease := take(t, l, req)
	key := l.keeper.keys.Lock(req.KeyID)
	theirs := driver.NewNonce().String() + " 1 d n"
	if err := l.keeper.client.Set(t.Context(), key, theirs, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	wantLostAtCheck(t, lease)
	release(t, lease)
	if got, err := l.keeper.client.Get(t.Context(), key).Result(); got != theirs || err != nil {
		t.Errorf("the lock is %q, %v, want the other owner's %q", got, err, theirs)
	}
	if left := l.keeper.client.TTL(t.Context(), key).Val(); left < 30*time.Minute {
		t.Errorf("the other owner's lock lives for %v, want what it was given", left)
	}
}

func wantLostAtCheck(t *testing.T, lease driver.Lease) {
	t.Helper()
	if left, err := lease.Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() = %v, %v, want %v", left, err, driver.ErrLeaseLost)
	}
	wantLost(t, lease)
}

// Check renews: it returns nearly all of the trusted time.
func TestCheckRenews(t *testing.T) {
	t.Parallel()
	const ttl = time.Hour
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t), WithTTL(ttl)), request()
	lease := take(t, l, req)
	l.keeper.client.Expire(t.Context(), l.keeper.keys.Lock(req.KeyID), time.Minute)
	if left, err := lease.Check(t.Context()); err != nil || left > leasing.TrustOf(ttl) || left < leasing.TrustOf(ttl)-time.Minute {
		t.Errorf("Check() = %v, %v, want nearly %v", left, err, leasing.TrustOf(ttl))
	}
	if left := l.keeper.client.TTL(t.Context(), l.keeper.keys.Lock(req.KeyID)).Val(); left < ttl-time.Minute {
		t.Errorf("the lock lives for %v, want nearly %v", left, ttl)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if left, err := lease.Check(ended); !errors.Is(err, driver.ErrUnavailable) || lease.Err() != nil {
		t.Errorf("Check() with an ended context = %v, %v, want %v, and the lease as it was", left, err, driver.ErrUnavailable)
	}
}

// A Check without an answer ends with the trust, whatever the time-outs of its caller and of the client.
func TestCheckEndsWithTrust(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartRedisProxy(t, sharedAddr(t))
	o := options(1, proxy.Addr())
	o.ReadTimeout, o.WriteTimeout = 2*patience, 2*patience
	l := open(t, newClient(t, o), freshPrefix(t), WithTTL(time.Second))
	lease := take(t, l, request())
	proxy.Freeze(testserver.Both)
	t.Cleanup(proxy.Restore)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if _, err := lease.Check(context.Background()); err == nil {
			t.Error("Check() = <nil> without an answer")
		}
	}()
	await(t, "the end of Check", over)
}

// The holder and its attempt can be told from the value.
func TestValueNamesTheAttempt(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	lease := take(t, l, req)
	want := " " + tokenOf(lease.Fence()) + " " + lease.Fence().Domain + " " + req.Nonce.String() + " " + thisProcess + " 10000"
	if got := l.keeper.client.Get(t.Context(), l.keeper.keys.Lock(req.KeyID)).Val(); got[min(32, len(got)):] != want { // behind the owner
		t.Errorf("the lock's value is %q, want an owner and %q", got, want)
	}
}

func tokenOf(f driver.Fence) string { return f.String()[len(f.Domain)+1:] }
