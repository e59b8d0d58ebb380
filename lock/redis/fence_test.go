package redislock

import (
	"context"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// fencesOf is what is kept of the shard that a key belongs to.
func fencesOf(t *testing.T, l *Locker, id driver.KeyID) (domain string, last uint64) {
	t.Helper()
	v, err := l.keeper.client.HMGet(t.Context(), l.keeper.keys.Fences(redisserver.ShardOf(id)), "domain", "last").Result()
	if err != nil {
		t.Fatal(err)
	}
	domain, _ = v[0].(string)
	text, _ := v[1].(string)
	last, _ = strconv.ParseUint(text, 10, 64)
	return domain, last
}

func TestFenceIsTheServersTime(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	before := time.Now().Add(-time.Hour).UnixMicro()
	lease := take(t, l, req)
	after := time.Now().Add(time.Hour).UnixMicro()
	if got := lease.Fence().Token; got < uint64(before) || got > uint64(after) {
		t.Errorf("Fence().Token = %d, want µs between %d and %d", got, before, after)
	}
	if domain, last := fencesOf(t, l, req.KeyID); lease.Fence() != (driver.Fence{Domain: domain, Token: last}) {
		t.Errorf("Fence() = %s, want %s/%d as it is kept", lease.Fence(), domain, last)
	}
}

// The counter is ahead of the clock: it was set back.
func TestFenceGrowsWhenTheClockIsBehind(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	first := take(t, l, req)
	release(t, first)
	ahead := uint64(time.Now().Add(24 * time.Hour).UnixMicro())
	l.keeper.client.HSet(t.Context(), l.keeper.keys.Fences(redisserver.ShardOf(req.KeyID)), "last", ahead)
	for i := range uint64(3) {
		lease := take(t, l, again(req))
		if got, want := lease.Fence(), (driver.Fence{Domain: first.Fence().Domain, Token: ahead + 1 + i}); got != want {
			t.Errorf("Fence() = %s, want %s", got, want)
		}
		release(t, lease)
	}
}

// A clock that was set back makes the time to live of a lock longer. A dead process would keep its
// keys for as long.
func TestLockStaysForOneTimeToLiveWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	proxy, client, prefix, ttl := testserver.StartRedisProxy(t, sharedAddr(t)), connect(t, 2, sharedAddr(t)), freshPrefix(t), 3*time.Second
	l, other, req := open(t, connect(t, 2, proxy.Addr()), prefix, WithTTL(ttl)), open(t, client, prefix, WithTTL(time.Minute)), request()
	take(t, l, req)
	proxy.BlackHole(testserver.Both) // as if the process were dead
	key := l.keeper.keys.Lock(req.KeyID)
	left := func() time.Duration { return client.PTTL(t.Context(), key).Val() }
	before := left()
	wantLocked(t, other, again(req))
	if now := left(); now > before {
		t.Errorf("a request lets the lock stay for %v, and it had %v left", now, before)
	}
	client.PExpire(t.Context(), key, time.Hour)
	wantLocked(t, other, again(req))
	if now := left(); now > ttl {
		t.Errorf("the lock of a dead process stays for %v, want %v at the most", now, ttl)
	}
	release(t, takeSoon(t, other, again(req)))
}

// A fail-over has lost the last fences, and kept the domain.
func TestFenceGrowsPastALostTail(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	early := take(t, l, req).Fence()
	late := take(t, l, driver.LockRequest{KeyID: sibling(req.KeyID), Nonce: driver.NewNonce()}).Fence()
	l.keeper.client.HSet(t.Context(), l.keeper.keys.Fences(redisserver.ShardOf(req.KeyID)), "last", early.Token)
	l.keeper.client.Del(t.Context(), l.keeper.keys.Lock(req.KeyID))
	if next := take(t, l, again(req)).Fence(); !late.Before(next) {
		t.Errorf("Fence() = %s after %s was lost, want a greater one", next, late)
	}
}

// sibling is another key of the same shard.
func sibling(id driver.KeyID) driver.KeyID {
	id[31] ^= 1
	return id
}

func TestFencesThatNumbersCannotHoldAreRefused(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	l.keeper.client.HSet(t.Context(), l.keeper.keys.Fences(redisserver.ShardOf(req.KeyID)), "domain", "d", "last", 1<<53-2)
	lease := take(t, l, req)
	if got := lease.Fence().Token; got != 1<<53-1 {
		t.Errorf("Fence().Token = %d, want %d", got, 1<<53-1)
	}
	release(t, lease)
	for _, last := range []uint64{1<<53 - 1, math.MaxInt64} {
		l.keeper.client.HSet(t.Context(), l.keeper.keys.Fences(redisserver.ShardOf(req.KeyID)), "last", last)
		if lease, err := l.TryAcquire(t.Context(), again(req)); err == nil {
			t.Errorf("TryAcquire() after fence %d = %s, want an error", last, lease.Fence())
		}
	}
}

func TestDomainIsSharedAndOnePerShard(t *testing.T) {
	t.Parallel()
	prefix := freshPrefix(t)
	a, b := open(t, connect(t, 2, sharedAddr(t)), prefix), open(t, connect(t, 2, sharedAddr(t)), prefix)
	domains := map[string]bool{}
	for shard := range Shards {
		req := request()
		req.KeyID[0] = byte(shard)
		one, two := take(t, a, req), take(t, b, driver.LockRequest{KeyID: sibling(req.KeyID), Nonce: driver.NewNonce()})
		if one.Fence().Domain != two.Fence().Domain {
			t.Errorf("shard %d: domains %q and %q for two clients, want one", shard, one.Fence().Domain, two.Fence().Domain)
		}
		domains[one.Fence().Domain] = true
	}
	if len(domains) != Shards {
		t.Errorf("%d domains, want %d", len(domains), Shards)
	}
}

// Who loses the data loses the domain: the new fences are not compared with the
// old ones. The lease is noticed to be gone by the heartbeat, or by Check.
func TestFlush(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]func(*testing.T, driver.Lease){
		"heartbeat": func(t *testing.T, lease driver.Lease) { await(t, "Done() after FLUSHALL", lease.Done()) },
		"check":     func(t *testing.T, lease driver.Lease) { _, _ = lease.Check(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, req := testserver.StartRedis(t), request()
			ttl := 3 * time.Second
			if name == "check" {
				ttl = time.Hour
			}
			l := open(t, connect(t, 2, r.Addr()), WithTTL(ttl))
			lease := take(t, l, req)
			do(t, r, "FLUSHALL")
			notice(t, lease)
			wantLost(t, lease)
			next := take(t, l, again(req))
			if next.Fence().Domain == lease.Fence().Domain {
				t.Errorf("Fence() = %s after a flush and %s before, want another domain", next.Fence(), lease.Fence())
			}
			release(t, lease)
			wantLocked(t, l, again(req))
			if left, err := next.Check(t.Context()); err != nil || left <= 0 {
				t.Errorf("Check() = %v, %v, want time left", left, err)
			}
		})
	}
}

// A fail-over that lost the lock: what the documentation says it can do.
func TestFailoverCanGiveALockTwice(t *testing.T) {
	t.Parallel()
	s := testserver.StartSentinel(t, 1)
	o := options(2, s.Addrs()...)
	o.MasterName = testserver.SentinelMaster
	client := newClient(t, o)
	l, req := open(t, client, WithTTL(time.Minute)), request()
	release(t, take(t, l, req)) // so that the replica knows the domain
	pipe := client.Pipeline()   // WAIT counts the writes of its own connection only
	pipe.Set(t.Context(), "replicated", 1, 0)
	replicas := pipe.Do(t.Context(), "WAIT", 1, 10000)
	if _, err := pipe.Exec(t.Context()); err != nil || replicas.Val() != int64(1) {
		t.Fatalf("WAIT = %v, %v, want 1 replica", replicas.Val(), err)
	}
	if got := do(t, s.Replica(), "SAVE"); got[0] != "OK" {
		t.Fatalf("SAVE = %v, want OK", got)
	}
	s.Replica().Stop()
	first := take(t, l, again(req))
	s.Primary().Kill()
	s.Replica().Restart()
	if err := s.AwaitPrimary(s.Replica()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var second driver.Lease
	for second == nil {
		var err error
		if second, err = l.TryAcquire(ctx, again(req)); ctx.Err() != nil {
			t.Fatalf("TryAcquire() after the fail-over = %v, want a lease", err)
		}
	}
	if err := first.Err(); err != nil {
		t.Errorf("Err() of the first lease = %v right after the fail-over, want <nil>: it cannot know", err)
	}
	if !first.Fence().Before(second.Fence()) {
		t.Errorf("Fence() = %s after %s was lost, want a greater one in its domain", second.Fence(), first.Fence())
	}
	if left, err := first.Check(ctx); err == nil {
		t.Errorf("Check() of the first lease = %v, want an error", left)
	}
	wantLost(t, first)
}
