package redisstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Settlements come late, repeated, and after the server fell back to an earlier state. A
// settlement never changes a completed record, nor the record of a later attempt.
func TestRepairReplacesNoLaterTruth(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(*testing.T) func(driver.KeyID) fallible{"redis": fallibleRedis, "memory": fallibleMemory} {
		t.Run(name, func(t *testing.T) {
			steps := 1_000
			if testing.Short() {
				steps = 300
			}
			repairs, violation := repairModel(t, fresh(t), steps)
			if repairs == 0 || violation != "" {
				t.Errorf("%d repairs, want some; the first violation: %q, want none", repairs, violation)
			}
		})
	}
}

// fallible is a store that can fall back to an earlier record of a key.
type fallible struct {
	driver.Store
	replicate, fallBack func()
}

// fallibleRedis makes stores that fall back to any state that was replicated.
func fallibleRedis(t *testing.T) func(driver.KeyID) fallible {
	m := miniredis.RunT(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	return func(id driver.KeyID) fallible {
		var replicated []string
		return fallible{s, func() {
			if v, err := m.Get(s.keys.record(id)); err == nil {
				replicated = append(replicated, v)
			}
		}, func() {
			if len(replicated) > 0 {
				_ = m.Set(s.keys.record(id), replicated[rand.IntN(len(replicated))])
			}
		}}
	}
}

// fallibleMemory makes stores that fall back to the state that was replicated last.
func fallibleMemory(*testing.T) func(driver.KeyID) fallible {
	return func(driver.KeyID) fallible {
		s := idemtest.NewReplicatedStore(func() driver.Store { return memorystore.New() })
		return fallible{s, s.Sync, s.Failover}
	}
}

// held is an attempt with the outcome that its holder will store.
type held struct {
	seq        int // in the order in which the attempts began
	settlement driver.Settlement
}

// repairModel ends at the first violation.
func repairModel(t *testing.T, fresh func(driver.KeyID) fallible, steps int) (repairs int, violation string) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 2))
	states := []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateReleased, driver.StateUnknown}
	for round := 0; steps > 0; round++ {
		id := idem.NewKeyID("repair", idem.Key(fmt.Sprint(seed, round)))
		s := fresh(id)
		get := func() driver.Record {
			rec, err := s.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return rec
		}
		kind := driver.KeyKind(rng.IntN(2))
		if kind == driver.IssuedToken {
			if _, err := s.Issue(t.Context(), id, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		var all []held
		seqs := map[driver.Nonce]int{}
		token, domain := uint64(10), 0
		for range 40 {
			steps--
			switch rng.IntN(8) {
			case 0:
				s.replicate()
			case 1:
				s.fallBack()
			case 2, 3, 4: // the next holder settles the attempt in doubt or starts over
				if rng.IntN(12) == 0 {
					domain, token = domain+1, uint64(rng.IntN(20))
				}
				token++
				req := driver.BeginRequest{Kind: kind, Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: fmt.Sprint("d", domain), Token: token}}
				if rec := get(); rec.State.Open() && rng.IntN(2) == 0 {
					req.RunAgainFrom = &rec.Attempt
				} else if rec.State.Open() {
					_, _ = s.Settle(t.Context(), id, driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: time.Hour})
				}
				res, err := s.Begin(t.Context(), id, req)
				if err != nil || !res.Begun {
					continue
				}
				h := held{seq: len(all) + 1, settlement: driver.Settlement{Attempt: res.Record.Attempt, ID: req.Nonce, State: states[rng.IntN(len(states))],
					Response: &driver.Response{Status: 201}, ResultTTL: time.Hour, KeyTTL: time.Hour,
					Repair: &driver.Repair{Kind: kind, Started: res.Record.Started, Replaced: res.Replaced}}}
				if req.RunAgainFrom != nil && h.settlement.State == driver.StateReleased {
					h.settlement.State = driver.StateUnknown
				}
				all, seqs[req.Nonce] = append(all, h), h.seq
			default: // a holder, perhaps late and not for the first time
				if len(all) == 0 {
					continue
				}
				h := all[rng.IntN(len(all))]
				h.settlement.LeaseTrusted = h.seq == len(all)
				before := get()
				res, err := s.Settle(t.Context(), id, h.settlement)
				if err != nil {
					t.Fatal(err)
				}
				after := get()
				changed := before.State != after.State || before.Attempt != after.Attempt
				if res.Repaired && changed {
					repairs++
				}
				if changed && (before.State == driver.StateCompleted || seqs[before.Attempt.Nonce] > h.seq) {
					return repairs, fmt.Sprintf("attempt %d as %v took the place of attempt %d, %v", h.seq, h.settlement.State,
						seqs[before.Attempt.Nonce], before.State)
				}
			}
		}
	}
	t.Logf("%d repairs", repairs)
	return repairs, ""
}
