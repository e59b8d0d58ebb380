package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// Redis loses everything: nothing is paid until an operator has looked, and
// what was paid is not paid again.
func TestFlushedRedisRefusesUntilAccepted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := []*instance{s.start("one"), s.start("two")}
	before := payBefore(t, all[0])
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	all = append(all, s.start("started after the loss"))

	overEach(t, func(t *testing.T, via transport) {
		fresh, old := keyOver(via, "fresh"), keyOver(via, "before")
		for range 2 { // the second time everybody knows
			for _, in := range all {
				c := in.over(via)
				unavailable(t, "fresh key at "+in.name, c.pay(fresh, amount, fresh), "store-lost")
				unavailable(t, "paid key at "+in.name, c.pay(old, amount, old), "store-lost")
				unavailable(t, "token at "+in.name, c.tokenAnswer(), "store-lost")
				if r := in.demo().ready(); r.status != 503 {
					t.Errorf("readyz of %s = %v, want 503", in.name, r)
				}
			}
		}
		paidNever(t, all[0].over(via), fresh)
		if got := paidOnce(t, all[0].over(via), old); got != before[via] {
			t.Fatalf("payment = %v, want %v", got, before[via])
		}
	})

	if out, code := s.idemctl("store", "accept"); code != 0 {
		t.Fatalf("idemctl store accept = %d %q, want 0", code, out)
	}
	for _, in := range all {
		in.waitReady(t, 200)
		for _, via := range transports {
			key := keyOver(via, "after-at-"+in.name[:3])
			a := in.over(via).payUntil(patience, key, amount, key)
			original(t, "fresh key at "+in.name, a, paidOnce(t, in.over(via), key))
		}
	}
	for _, via := range transports {
		paidOnce(t, all[0].over(via), keyOver(via, "before"))
	}
}

// The loss comes between the read of fresh keys and their Begin: Begin notices
// by itself.
func TestRedisFlushedBetweenReadAndBegin(t *testing.T) {
	s, v, _ := failover(t)
	all := reachBegin((*testserver.Proxy).HoldNext)(t, v, "in-between")
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	v.deliver()
	overEachOf(t, all, func(t *testing.T, r running) {
		refused(t, "answer", <-r.done, "store-lost", "unavailable")
		v.neverLogged(t, "at=before-ledger", op(r.key))
		paidNever(t, v.over(r.via), r.key)
		unavailable(t, "repeat", v.over(r.via).pay(r.key, amount, r.key), "store-lost")
	})
}

// A restart is a loss where Redis keeps nothing on disk, and none where it does.
func TestRedisRestarted(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		lost bool
	}{
		{"without its records", nil, true},
		{"with its records", []string{"--appendonly", "yes", "--appendfsync", "always"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.redis = testserver.StartRedis(t, testserver.WithRedisArgs(tt.args...))
			in := s.start("one")
			before := payBefore(t, in)
			s.redis.Restart()
			if tt.lost {
				in.waitReady(t, 503)
				overEach(t, func(t *testing.T, via transport) {
					for _, name := range []string{"before", "fresh"} {
						key := keyOver(via, name)
						refused(t, key, in.over(via).pay(key, amount, key), "store-lost")
					}
				})
				return
			}
			in.waitReady(t, 200)
			for _, via := range transports {
				key := keyOver(via, "before")
				original(t, "repeat over "+via.String(), in.over(via).payUntil(patience, key, amount, key), before[via])
			}
			payFresh(t, in)
		})
	}
}

// The loss comes while payments run: they are finished, their outcomes are
// stored, and a repeat does not pay.
func TestRedisFlushedUnderARunningPayment(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", latency(victimLatency))
	all := in.reachOverEach(t, "flushed", "at=before-ledger")
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	overEachOf(t, all, func(t *testing.T, r running) {
		c := in.over(r.via)
		a := <-r.done
		want := paidOnce(t, c, r.key)
		original(t, "answer", a, want)
		replayed(t, "repeat", c.pay(r.key, amount, r.key), want)
		fresh := keyOver(r.via, "fresh")
		unavailable(t, "fresh key", c.pay(fresh, amount, fresh), "store-lost")
	})
}
