package tests

import (
	"context"
	"net/http"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// Redis loses everything: nothing is paid until an operator has looked, and
// what was paid is not paid again.
func TestFlushedRedisRefusesUntilAccepted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := []*instance{s.start("one"), s.start("two")}
	const old = "paid-before"
	want := all[0].demo().pay(old, amount, old).payment
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	all = append(all, s.start("started after the loss"))

	for range 2 { // the second time everybody knows
		for _, in := range all {
			unavailable(t, "fresh key at "+in.name, in.demo().pay("fresh", amount, "fresh"), "store-lost")
			unavailable(t, "paid key at "+in.name, in.demo().pay(old, amount, old), "store-lost")
			a := in.demo().send(context.Background(), http.MethodPost, "/v1/tokens", "", nil)
			unavailable(t, "token at "+in.name, a, "store-lost")
			if r := in.demo().ready(); r.status != 503 {
				t.Errorf("readyz of %s = %v, want 503", in.name, r)
			}
		}
	}
	paidNever(t, all[0].demo(), "fresh")
	if got := paidOnce(t, all[0].demo(), old); got != want {
		t.Fatalf("payment = %v, want %v", got, want)
	}

	if out, code := s.idemctl("store", "accept"); code != 0 {
		t.Fatalf("idemctl store accept = %d %q, want 0", code, out)
	}
	for _, in := range all {
		in.waitReady(t, 200)
		key := "after at " + in.name[:3]
		a := in.demo().payUntil(patience, `"`+key+`"`, amount, key)
		original(t, "fresh key at "+in.name, a, paidOnce(t, in.demo(), key))
	}
	paidOnce(t, all[0].demo(), old)
}

// The loss comes between the read of a fresh key and its Begin: Begin notices
// by itself.
func TestRedisFlushedBetweenReadAndBegin(t *testing.T) {
	s, v, _ := failover(t)
	const key = "in-between"
	h := v.redis.HoldNext(scriptOn(key))
	done := v.demo().paying(key, amount, key)
	happens(t, "begin", h.Held())
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	h.Release()
	refused(t, "answer", <-done, 503, "store-lost", "unavailable")
	v.neverLogged(t, "at=before-ledger", op(key))
	paidNever(t, v.demo(), key)
	unavailable(t, "repeat", v.demo().pay(key, amount, key), "store-lost")
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
			first := in.demo().pay("before", amount, "before")
			s.redis.Restart()
			if tt.lost {
				in.waitReady(t, 503)
				refused(t, "repeat", in.demo().pay("before", amount, "before"), 503, "store-lost")
				refused(t, "fresh key", in.demo().pay("fresh", amount, "fresh"), 503, "store-lost")
				return
			}
			in.waitReady(t, 200)
			repeat := in.demo().payUntil(patience, "before", amount, "before")
			original(t, "repeat", repeat, first.payment)
			a := in.demo().payUntil(patience, "fresh", amount, "fresh")
			original(t, "fresh key", a, paidOnce(t, in.demo(), "fresh"))
		})
	}
}

// The loss comes while a payment runs: it is finished, its outcome is stored,
// and a repeat does not pay.
func TestRedisFlushedUnderARunningPayment(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", latency(victimLatency))
	const key = "flushed"
	done := in.demo().paying(key, amount, key)
	in.waitLog(t, "at=before-ledger", op(key))
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	a := <-done
	want := paidOnce(t, in.demo(), key)
	original(t, "answer", a, want)
	repeat := in.demo().pay(key, amount, key)
	original(t, "repeat", repeat, want)
	if !repeat.replayed() {
		t.Errorf("repeat = %v, want it replayed", repeat)
	}
	unavailable(t, "fresh key", in.demo().pay("fresh", amount, "fresh"), "store-lost")
}
