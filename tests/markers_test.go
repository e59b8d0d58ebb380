package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const durableMarkers = "--durable-markers"

// withMarkers starts instances that keep durable markers.
func withMarkers(f ...string) launchOption {
	return func(l *launch) { l.flags = append(append(l.flags, durableMarkers), f...) }
}

func (s *system) flushRedis(t testing.TB) {
	t.Helper()
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
}

// Redis loses everything between two requests: what was paid is not paid again,
// says so, and the service goes on without an operator.
func TestMarkedKeysSurviveAWipedRedis(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := []*instance{s.start("one", withMarkers()), s.start("two", withMarkers())}
	before := payBefore(t, all[0])
	token := all[0].httpClient().issueToken(t)
	wantPayment(t, "trade", all[0].httpClient().trade(token, amount, "traded"), wantOnePayment(t, all[0].httpClient(), "traded"))
	for round := range 3 {
		s.flushRedis(t)
		if round == 1 {
			all = append(all, s.start("started after the loss", withMarkers()))
		}
		for _, in := range all {
			forEachTransport(t, func(t *testing.T, via transport) {
				c, key := in.client(via), keyFor(via, "before")
				wantRefusal(t, "repeat", c.pay(key, amount, key), "result-unavailable")
				wantRefusal(t, "another amount", c.pay(key, amount+1, key), "key-reused")
				if got := wantOnePayment(t, c, key); got != before[via] {
					t.Fatalf("payment = %v, want %v", got, before[via])
				}
				fresh := keyFor(via, fmt.Sprintf("fresh-%d-%s", round, in.name[:3]))
				a := wantPaidOnce(t, "fresh key", c, fresh)
				wantReplay(t, "its repeat", c.pay(fresh, amount, fresh), a.payment)
			})
			wantRefusal(t, "token after the loss", in.httpClient().trade(token, amount, "traded"), "token-unknown")
			wantOnePayment(t, in.httpClient(), "traded")
		}
	}
}

// Redis is wiped again and again while clients pay, and repeat their keys: none
// is paid twice, with markers or without. With them the service goes on; without
// them it refuses until the loss is accepted.
func TestRedisWipedUnderLoad(t *testing.T) {
	for name, opts := range map[string][]launchOption{"with markers": {withMarkers()}, "without markers": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			opts := append(opts, withLatency(20*time.Millisecond))
			instances := []*instance{s.start("one", opts...), s.start("two", opts...)}
			var told sync.Map // key to the payment that a client was told of
			var keys, paid, lost atomic.Int64
			check := func(key string, a answer) {
				switch {
				case a.isPayment():
					if before, known := told.LoadOrStore(key, a.payment.ID); known && before != a.payment.ID {
						t.Errorf("%s: payment %s, and %v before", key, a.payment.ID, before)
					}
					paid.Add(1)
				case a.isRefusal("store-lost"):
					lost.Add(1)
				case a.isRefusal("result-unavailable"), a.isRefusal("in-progress"), a.isRefusal("unavailable"), a.isRefusal("ownership-lost"):
				default:
					t.Errorf("%s = %v", key, a)
				}
			}
			over := make(chan struct{})
			var workers sync.WaitGroup
			for range 4 {
				workers.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						via := transports[rand.IntN(len(transports))]
						key := keyFor(via, fmt.Sprintf("wiped-%d", keys.Add(1)))
						for range 4 {
							var both sync.WaitGroup // repeats meet the first in every state
							for range 2 {
								c := instances[rand.IntN(len(instances))].client(via)
								both.Go(func() { check(key, c.pay(key, 7, key)) })
							}
							both.Wait()
						}
					}
				})
			}
			wipes := 1
			if len(opts) > 1 {
				wipes = 40
			}
			for range wipes {
				enough := paid.Load() + 20
				eventually(t, "payments between two losses", func() error {
					if paid.Load() < enough {
						return errNotYet
					}
					return nil
				})
				s.flushRedis(t)
			}
			eventually(t, "a client that feels the loss", func() error {
				if wipes == 1 && lost.Load() == 0 {
					return errNotYet
				}
				return nil
			})
			close(over)
			workers.Wait()
			c := instances[0].httpClient()
			for n := range keys.Load() {
				for _, via := range transports {
					key := keyFor(via, fmt.Sprintf("wiped-%d", n+1))
					if list, err := instances[0].client(via).listPayments(key); err != nil || len(list) > 1 {
						t.Errorf("payments of %s = %v, %v", key, list, err)
					}
				}
			}
			if err := checkBalances(c); err != nil {
				t.Error(err)
			}
			if wipes > 1 && lost.Load() > 0 {
				t.Errorf("%d requests were refused as store-lost, with markers", lost.Load())
			}
			t.Logf("%d keys, %d answers with a payment, %d refused as store-lost, %d losses", keys.Load(), paid.Load(), lost.Load(), wipes)
		})
	}
}

// Redis loses everything, whatever point a holder has come to: no key is paid twice,
// and every client is told of its one payment in the end. The holder goes on, is paused
// beyond its session and wakes up afterwards, or is killed.
func TestRedisWipedUnderAHolder(t *testing.T) {
	for how, lose := range map[string]func(t *testing.T, s *system, v *victim, all []runningPayment){
		"that goes on": func(*testing.T, *system, *victim, []runningPayment) {},
		"that is paused": func(t *testing.T, s *system, v *victim, all []runningPayment) {
			v.pause(t)
			s.waitLocksFree(all)
		},
		"that is killed": func(t *testing.T, _ *system, v *victim, _ []runningPayment) { v.kill(t) },
	} {
		for _, p := range slices.Concat(points, markPoints) {
			t.Run(how+", "+p.name, func(t *testing.T) {
				s, v, other := systemWithVictim(t, withMarkers())
				all := p.payUpTo(t, v, "wiped")
				lose(t, s, v, all)
				s.flushRedis(t)
				if how == "that goes on" {
					v.releaseHeld()
				}
				want := map[transport]payment{}
				for _, r := range all {
					retry := other.client(r.via).payWithRetries(r.key, amount, r.key)
					want[r.via] = wantOnePayment(t, other.client(r.via), r.key)
					if !retry.isRefusal("result-unavailable") {
						wantPayment(t, "retry over "+r.via.String(), retry, want[r.via])
					}
				}
				v.releaseHeld()
				if how == "that is paused" {
					v.resume(t)
				}
				forEachPayment(t, all, func(t *testing.T, r runningPayment) {
					if how != "that is killed" {
						wantPaymentOrOpenRefusal(t, r.done, want[r.via])
					}
					again := other.client(r.via).payWithRetries(r.key, amount, r.key)
					if !again.isRefusal("result-unavailable") {
						wantPayment(t, "second retry", again, want[r.via])
					}
					wantOnePayment(t, other.client(r.via), r.key)
				})
			})
		}
	}
}

// Where nobody can tell what a dead holder has done, and Redis is lost as well, every
// retry is told so, and nothing is paid again.
func TestRedisWipedUnderADeadHolderWithoutResolver(t *testing.T) {
	for _, p := range points {
		if !p.begun || p.abortsWhenResumed {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			s, v, other := systemWithVictim(t, withMarkers("--resolver", "none"))
			all := p.payUpTo(t, v, "wiped-unknown")
			v.kill(t)
			s.waitLocksFree(all)
			s.flushRedis(t)
			for _, r := range all {
				for range 2 {
					c := other.client(r.via)
					wantRefusal(t, "retry over "+r.via.String(), c.payWithRetries(r.key, amount, r.key), "outcome-unknown")
					if list := ledgerPayments(t, c, r.key); len(list) > 1 || len(list) == 1 != p.paid {
						t.Errorf("payments = %v, want one: %v", list, p.paid)
					}
				}
			}
		})
	}
}

// An attempt whose holder died is settled, and marked, by whoever settles it.
func TestSettledAttemptIsMarkedToo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	other := s.start("the other", withMarkers())
	v := s.startVictim(withMarkers())
	all := v.startPaymentsUpTo(t, "settled", "at=after-ledger")
	v.kill(t)
	for _, r := range all {
		<-r.done
		eventually(t, "end of the sweep", func() error {
			if state, err := other.client(r.via).keyState(r.key); err != nil || state != "completed" {
				return fmt.Errorf("state %q: %w", state, errors.Join(errNotYet, err))
			}
			return nil
		})
	}
	s.flushRedis(t)
	for _, r := range all {
		c := other.client(r.via)
		a := withRetries(func() answer { return c.pay(r.key, amount, r.key) })
		wantRefusal(t, "retry", a, "result-unavailable")
		wantOnePayment(t, c, r.key)
	}
}

// Markers go when their time is over, and keys are protected by Redis alone
// then.
func TestMarkersAreRemovedAfterTheirRetention(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", withMarkers("--marker-retention", "3s"))
	payBefore(t, in)
	conn := s.zooKeeper()
	for _, via := range transports {
		path := s.lockPath(keyFor(via, "before"))
		eventually(t, "removal of the marker", func() error {
			there, _, err := conn.Exists(path)
			if err != nil || there {
				return fmt.Errorf("exists = %v: %w", there, errors.Join(errNotYet, err))
			}
			return nil
		})
		key := keyFor(via, "before")
		wantReplay(t, "repeat", in.client(via).pay(key, amount, key), wantOnePayment(t, in.client(via), key))
	}
}

// An instance without the option heeds the markers of those with it: they are
// rolled out one by one.
func TestMarkersAreHeededByInstancesThatLeaveNone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	with, without := s.start("with", withMarkers()), s.start("without")
	payBefore(t, with)
	s.flushRedis(t)
	payFresh(t, with) // the loss is accepted by the one that may
	forEachTransport(t, func(t *testing.T, via transport) {
		key := keyFor(via, "before")
		a := withRetries(func() answer { return without.client(via).pay(key, amount, key) })
		wantRefusal(t, "repeat", a, "result-unavailable")
		wantOnePayment(t, without.client(via), key)
	})
}
