package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// Redis loses everything between two requests: what was paid is not paid again,
// says so, and the service goes on without an operator.
func TestMarkedKeysSurviveAWipedRedis(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	all := []*kit.Instance{s.Start("one", kit.WithMarkers()), s.Start("two", kit.WithMarkers())}
	before := kit.PayBefore(t, all[0])
	token := all[0].HTTPClient().IssueToken(t)
	kit.WantPayment(t, "trade", all[0].HTTPClient().Trade(token, kit.Amount, "traded"), kit.WantOnePayment(t, all[0].HTTPClient(), "traded"))
	waitMarked(s, token)
	for round := range 3 {
		s.FlushRedis(t)
		if round == 1 {
			all = append(all, s.Start("started after the loss", kit.WithMarkers()))
		}
		for _, in := range all {
			kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
				c, key := in.Client(via), kit.KeyFor(via, "before")
				kit.WantRefusal(t, "repeat", c.Pay(key, kit.Amount, key), "result-unavailable")
				kit.WantRefusal(t, "another amount", c.Pay(key, kit.Amount+1, key), "key-reused")
				if got := kit.WantOnePayment(t, c, key); got != before[via] {
					t.Fatalf("payment = %v, want %v", got, before[via])
				}
				fresh := kit.KeyFor(via, fmt.Sprintf("fresh-%d-%s", round, in.Name[:3]))
				a := kit.WantPaidOnce(t, "fresh key", c, fresh)
				kit.WantReplay(t, "its repeat", c.Pay(fresh, kit.Amount, fresh), a.Payment)
			})
			kit.WantRefusal(t, "token after the loss", in.HTTPClient().Trade(token, kit.Amount, "traded"), "token-unknown")
			kit.WantOnePayment(t, in.HTTPClient(), "traded")
		}
	}
}

// waitMarked waits for the markers of what [kit.PayBefore] has paid, and of other keys. A marker is left with the release of the
// lock, which may come after the answer.
func waitMarked(s *kit.System, others ...string) {
	s.T.Helper()
	conn := s.ZooKeeper()
	for _, via := range kit.Transports {
		others = append(others, kit.KeyFor(via, "before"))
	}
	for _, key := range others {
		s.WaitLock(conn, key, false)
	}
}

// Redis is wiped again and again while clients pay, and repeat their keys: none
// is paid twice, with markers or without. With them the service goes on; without
// them it refuses until the loss is accepted.
func TestRedisWipedUnderLoad(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]kit.LaunchOption{"with markers": {kit.WithMarkers()}, "without markers": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSystem(t)
			opts := append(opts, kit.WithLatency(20*time.Millisecond))
			instances := []*kit.Instance{s.Start("one", opts...), s.Start("two", opts...)}
			var told sync.Map // key to the payment that a client was told of
			var keys, paid, lost atomic.Int64
			check := func(key string, a kit.Answer) {
				switch {
				case a.IsPayment():
					if before, known := told.LoadOrStore(key, a.Payment.ID); known && before != a.Payment.ID {
						t.Errorf("%s: payment %s, and %v before", key, a.Payment.ID, before)
					}
					paid.Add(1)
				case a.IsRefusal("store-lost"):
					lost.Add(1)
				case a.IsRefusal("result-unavailable"), a.IsRefusal("in-progress"), a.IsRefusal("unavailable"), a.IsRefusal("ownership-lost"):
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
						via := kit.Transports[rand.IntN(len(kit.Transports))]
						key := kit.KeyFor(via, fmt.Sprintf("wiped-%d", keys.Add(1)))
						for range 4 {
							var both sync.WaitGroup // repeats meet the first in every state
							for range 2 {
								c := instances[rand.IntN(len(instances))].Client(via)
								both.Go(func() { check(key, c.Pay(key, 7, key)) })
							}
							both.Wait()
						}
					}
				})
			}
			wipes := 1
			if len(opts) > 1 {
				wipes = 12
			}
			for range wipes {
				enough := paid.Load() + 20
				kit.Eventually(t, "payments between two losses", func() error {
					if paid.Load() < enough {
						return kit.ErrNotYet
					}
					return nil
				})
				s.FlushRedis(t)
			}
			kit.Eventually(t, "a client that feels the loss", func() error {
				if wipes == 1 && lost.Load() == 0 {
					return kit.ErrNotYet
				}
				return nil
			})
			close(over)
			workers.Wait()
			c := instances[0].HTTPClient()
			for n := range keys.Load() {
				for _, via := range kit.Transports {
					key := kit.KeyFor(via, fmt.Sprintf("wiped-%d", n+1))
					if list, err := instances[0].Client(via).ListPayments(key); err != nil || len(list) > 1 {
						t.Errorf("payments of %s = %v, %v", key, list, err)
					}
				}
			}
			if err := kit.CheckBalances(c); err != nil {
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
// and every client is told of its one payment in the end. The holder goes on, or is paused
// beyond its session and wakes up afterwards.
func TestRedisWipedUnderAHolder(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(t *testing.T, s *kit.System, v *kit.Victim, all []kit.RunningPayment){
		"that goes on": func(*testing.T, *kit.System, *kit.Victim, []kit.RunningPayment) {},
		"that is paused": func(t *testing.T, s *kit.System, v *kit.Victim, all []kit.RunningPayment) {
			v.Pause(t)
			waitLocksFree(s, all)
		},
	} {
		for _, p := range slices.Concat(kit.Points, kit.MarkPoints) {
			t.Run(how+", "+p.Name, func(t *testing.T) {
				s, v, other := kit.SystemWithVictim(t, kit.WithMarkers())
				all := p.PayUpTo(t, v, "wiped")
				lose(t, s, v, all)
				s.FlushRedis(t)
				if how == "that goes on" {
					v.ReleaseHeld()
				}
				want := map[kit.Transport]kit.Payment{}
				for _, r := range all {
					retry := other.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
					want[r.Via] = kit.WantOnePayment(t, other.Client(r.Via), r.Key)
					if !retry.IsRefusal("result-unavailable") {
						kit.WantPayment(t, "retry over "+r.Via.String(), retry, want[r.Via])
					}
				}
				v.ReleaseHeld()
				if how == "that is paused" {
					v.Resume(t)
				}
				kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
					wantPaymentOrOpenRefusal(t, r.Done, want[r.Via])
					again := other.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
					if !again.IsRefusal("result-unavailable") {
						kit.WantPayment(t, "second retry", again, want[r.Via])
					}
					kit.WantOnePayment(t, other.Client(r.Via), r.Key)
				})
			})
		}
	}
}

// Where nobody can tell what a dead holder has done, and Redis is lost as well, every
// retry is told so, and nothing is paid again.
func TestRedisWipedUnderADeadHolderWithoutResolver(t *testing.T) {
	t.Parallel()
	for _, p := range kit.Points {
		if !p.Begun || p.AbortsWhenResumed {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			s, v, other := kit.SystemWithVictim(t, kit.WithMarkers("--resolver", "none"))
			all := p.PayUpTo(t, v, "wiped-unknown")
			v.Kill(t)
			waitLocksFree(s, all)
			s.FlushRedis(t)
			for _, r := range all {
				for range 2 {
					c := other.Client(r.Via)
					kit.WantRefusal(t, "retry over "+r.Via.String(), c.PayWithRetries(r.Key, kit.Amount, r.Key), "outcome-unknown")
					if list := kit.LedgerPayments(t, c, r.Key); len(list) > 1 || len(list) == 1 != p.Paid {
						t.Errorf("payments = %v, want one: %v", list, p.Paid)
					}
				}
			}
		})
	}
}

// An attempt whose holder died is settled, and marked, by whoever settles it.
func TestSettledAttemptIsMarkedToo(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	other := s.Start("the other", kit.WithMarkers())
	v := s.StartVictim(kit.WithMarkers())
	all := v.StartPaymentsUpTo(t, "settled", "at=after-ledger")
	v.Kill(t)
	for _, r := range all {
		<-r.Done
		kit.Eventually(t, "end of the sweep", func() error {
			if state, err := other.Client(r.Via).KeyState(r.Key); err != nil || state != "completed" {
				return fmt.Errorf("state %q: %w", state, errors.Join(kit.ErrNotYet, err))
			}
			return nil
		})
	}
	waitLocksFree(s, all) // the marker is left with the release
	s.FlushRedis(t)
	for _, r := range all {
		c := other.Client(r.Via)
		a := kit.WithRetries(func() kit.Answer { return c.Pay(r.Key, kit.Amount, r.Key) })
		kit.WantRefusal(t, "retry", a, "result-unavailable")
		kit.WantOnePayment(t, c, r.Key)
	}
}

// Markers go when their time is over, and keys are protected by Redis alone
// then.
func TestMarkersAreRemovedAfterTheirRetention(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one", kit.WithMarkers("--marker-retention", "3s"))
	kit.PayBefore(t, in)
	conn := s.ZooKeeper()
	for _, via := range kit.Transports {
		path := s.LockPath(kit.KeyFor(via, "before"))
		kit.Eventually(t, "removal of the marker", func() error {
			there, _, err := conn.Exists(path)
			if err != nil || there {
				return fmt.Errorf("exists = %v: %w", there, errors.Join(kit.ErrNotYet, err))
			}
			return nil
		})
		key := kit.KeyFor(via, "before")
		kit.WantReplay(t, "repeat", in.Client(via).Pay(key, kit.Amount, key), kit.WantOnePayment(t, in.Client(via), key))
	}
}

// An instance without the option heeds the markers of those with it: they are
// rolled out one by one.
func TestMarkersAreHeededByInstancesThatLeaveNone(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	with, without := s.Start("with", kit.WithMarkers()), s.Start("without")
	kit.PayBefore(t, with)
	waitMarked(s)
	s.FlushRedis(t)
	payFresh(t, with) // the loss is accepted by the one that may
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		key := kit.KeyFor(via, "before")
		a := kit.WithRetries(func() kit.Answer { return without.Client(via).Pay(key, kit.Amount, key) })
		kit.WantRefusal(t, "repeat", a, "result-unavailable")
		kit.WantOnePayment(t, without.Client(via), key)
	})
}
