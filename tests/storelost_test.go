package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
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

	forEachTransport(t, func(t *testing.T, via transport) {
		fresh, old := keyFor(via, "fresh"), keyFor(via, "before")
		for range 2 { // the second time everybody knows
			for _, in := range all {
				c := in.client(via)
				wantRefusalAtOnce(t, "fresh key at "+in.name, func() answer { return c.pay(fresh, amount, fresh) }, "store-lost")
				wantRefusalAtOnce(t, "paid key at "+in.name, func() answer { return c.pay(old, amount, old) }, "store-lost")
				wantRefusalAtOnce(t, "token at "+in.name, c.requestToken, "store-lost")
				if r := in.httpClient().readiness(); r.status != 503 {
					t.Errorf("readyz of %s = %v, want 503", in.name, r)
				}
			}
		}
		wantNoPayment(t, all[0].client(via), fresh)
		if got := wantOnePayment(t, all[0].client(via), old); got != before[via] {
			t.Fatalf("payment = %v, want %v", got, before[via])
		}
	})

	if out, code := s.outputOf("store", "accept"); code != 0 {
		t.Fatalf("idemctl store accept = %d %q, want 0", code, out)
	}
	for _, in := range all {
		in.waitReady(t, 200)
		for _, via := range transports {
			key := keyFor(via, "after-at-"+in.name[:3])
			wantPaidOnce(t, "fresh key at "+in.name, in.client(via), key)
		}
	}
	for _, via := range transports {
		wantOnePayment(t, all[0].client(via), keyFor(via, "before"))
	}
}

// The loss comes between the read of fresh keys and their Begin: Begin notices
// by itself.
func TestRedisFlushedBetweenReadAndBegin(t *testing.T) {
	s, v, _ := systemWithVictim(t)
	all := upToRedisCall((*testserver.Proxy).HoldNext, scriptOn)(t, v, "in-between")
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	v.releaseHeld()
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		wantRefusal(t, "answer", <-r.done, "store-lost", "unavailable")
		v.wantNoLog(t, "at=before-ledger", logOp(r.key))
		wantNoPayment(t, v.client(r.via), r.key)
		wantRefusalAtOnce(t, "repeat", func() answer { return v.client(r.via).pay(r.key, amount, r.key) }, "store-lost")
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
				forEachTransport(t, func(t *testing.T, via transport) {
					for _, name := range []string{"before", "fresh"} {
						key := keyFor(via, name)
						wantRefusal(t, key, in.client(via).pay(key, amount, key), "store-lost")
					}
				})
				return
			}
			in.waitReady(t, 200)
			for _, via := range transports {
				key := keyFor(via, "before")
				wantPayment(t, "repeat over "+via.String(), in.client(via).payWithRetries(key, amount, key), before[via])
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
	in := s.start("one", withLatency(victimLatency))
	all := in.startPaymentsUpTo(t, "flushed", "at=before-ledger")
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := in.client(r.via)
		a := <-r.done
		want := wantOnePayment(t, c, r.key)
		wantPayment(t, "answer", a, want)
		wantReplay(t, "repeat", c.pay(r.key, amount, r.key), want)
		fresh := keyFor(r.via, "fresh")
		wantRefusalAtOnce(t, "fresh key", func() answer { return c.pay(fresh, amount, fresh) }, "store-lost")
	})
}
