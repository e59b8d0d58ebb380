package faults

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Redis loses everything: nothing is paid until an operator has looked, and
// what was paid is not paid again.
func TestFlushedRedisRefusesUntilAccepted(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	all := []*kit.Instance{s.Start("one"), s.Start("two")}
	before := kit.PayBefore(t, all[0])
	if _, err := s.Redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	all = append(all, s.Start("started after the loss"))

	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		fresh, old := kit.KeyFor(via, "fresh"), kit.KeyFor(via, "before")
		for range 2 { // the second time everybody knows
			for _, in := range all {
				c := in.Client(via)
				wantRefusalAtOnce(t, "fresh key at "+in.Name, func() kit.Answer { return c.Pay(fresh, kit.Amount, fresh) }, "store-lost")
				wantRefusalAtOnce(t, "paid key at "+in.Name, func() kit.Answer { return c.Pay(old, kit.Amount, old) }, "store-lost")
				wantRefusalAtOnce(t, "token at "+in.Name, c.RequestToken, "store-lost")
				if r := in.HTTPClient().Readiness(); r.Status != 503 {
					t.Errorf("readyz of %s = %v, want 503", in.Name, r)
				}
			}
		}
		kit.WantNoPayment(t, all[0].Client(via), fresh)
		if got := kit.WantOnePayment(t, all[0].Client(via), old); got != before[via] {
			t.Fatalf("payment = %v, want %v", got, before[via])
		}
	})

	if out, code := s.OutputOf("store", "accept"); code != 0 {
		t.Fatalf("idemctl store accept = %d %q, want 0", code, out)
	}
	for _, in := range all {
		waitReady(t, in, 200)
		for _, via := range kit.Transports {
			key := kit.KeyFor(via, "after-at-"+in.Name[:3])
			kit.WantPaidOnce(t, "fresh key at "+in.Name, in.Client(via), key)
		}
	}
	for _, via := range kit.Transports {
		kit.WantOnePayment(t, all[0].Client(via), kit.KeyFor(via, "before"))
	}
}

// The loss comes between the read of fresh keys and their Begin: Begin notices
// by itself.
func TestRedisFlushedBetweenReadAndBegin(t *testing.T) {
	s, v, _ := kit.SystemWithVictim(t)
	all := kit.UpToRedisCall((*testserver.Proxy).HoldNext, kit.ScriptOn)(t, v, "in-between")
	if _, err := s.Redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	v.ReleaseHeld()
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		kit.WantRefusal(t, "answer", <-r.Done, "store-lost", "unavailable")
		v.WantNoLog(t, "at=before-ledger", kit.LogOp(r.Key))
		kit.WantNoPayment(t, v.Client(r.Via), r.Key)
		wantRefusalAtOnce(t, "repeat", func() kit.Answer { return v.Client(r.Via).Pay(r.Key, kit.Amount, r.Key) }, "store-lost")
	})
}

// A restart is a loss where Redis keeps nothing on disk, and none where it does.
func TestRedisRestarted(t *testing.T) {
	t.Parallel()
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
			s := kit.NewSystem(t)
			s.Redis = testserver.StartRedis(t, testserver.WithRedisArgs(tt.args...))
			in := s.Start("one")
			before := kit.PayBefore(t, in)
			s.Redis.Restart()
			if tt.lost {
				waitReady(t, in, 503)
				kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
					for _, name := range []string{"before", "fresh"} {
						key := kit.KeyFor(via, name)
						kit.WantRefusal(t, key, in.Client(via).Pay(key, kit.Amount, key), "store-lost")
					}
				})
				return
			}
			waitReady(t, in, 200)
			for _, via := range kit.Transports {
				key := kit.KeyFor(via, "before")
				kit.WantPayment(t, "repeat over "+via.String(), in.Client(via).PayWithRetries(key, kit.Amount, key), before[via])
			}
			payFresh(t, in)
		})
	}
}

// The loss comes while payments run: they are finished, their outcomes are
// stored, and a repeat does not pay.
func TestRedisFlushedUnderARunningPayment(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one", kit.WithLatency(kit.VictimLatency))
	all := in.StartPaymentsUpTo(t, "flushed", "at=before-ledger")
	if _, err := s.Redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		c := in.Client(r.Via)
		a := <-r.Done
		want := kit.WantOnePayment(t, c, r.Key)
		kit.WantPayment(t, "answer", a, want)
		kit.WantReplay(t, "repeat", c.Pay(r.Key, kit.Amount, r.Key), want)
		fresh := kit.KeyFor(r.Via, "fresh")
		wantRefusalAtOnce(t, "fresh key", func() kit.Answer { return c.Pay(fresh, kit.Amount, fresh) }, "store-lost")
	})
}
