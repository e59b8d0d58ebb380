package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func sentinelAddr(s *testserver.Sentinel) string {
	return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + testserver.SentinelMaster
}

// promote kills the primary and waits until the replica has taken over.
func promote(t *testing.T, servers *testserver.Sentinel) {
	t.Helper()
	servers.Primary().Kill()
	if err := servers.AwaitPrimary(servers.Replica()); err != nil {
		t.Fatal(err)
	}
}

// reached runs call until the server could be reached by it: clients learn of a
// new primary when their connections break.
func reached(t *testing.T, call func() error) error {
	t.Helper()
	var last error
	await(t, "the new primary", func() error {
		if last = call(); errors.Is(last, driver.ErrUnavailable) {
			return last
		}
		return nil
	})
	return last
}

// wantReachedAndWorking requires that the store takes fresh keys once each of its
// connections leads to the new primary.
func wantReachedAndWorking(t *testing.T, s *Store) {
	t.Helper()
	id, req := newAttempt(driver.ClientKey)
	err := reached(t, func() error {
		res, err := s.Begin(t.Context(), id, req)
		if err == nil && !res.Begun {
			t.Errorf("Begin(%v) of a fresh key = not begun, want begun", id)
		}
		return err
	})
	if err != nil {
		t.Errorf("Begin(%v) of a fresh key = %v, want <nil>", id, err)
	}
	if err := reached(t, func() error { return s.Ping(t.Context()) }); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}
}

func TestFailoverToAReplicaThatHasEverything(t *testing.T) {
	t.Parallel()
	servers := testserver.StartSentinel(t, 1)
	w := new(register)
	s := open(t, connect(t, sentinelAddr(servers)), witnessed(w))
	careful := open(t, connect(t, sentinelAddr(servers)), witnessed(w), WithReplicas(1, patient))
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, careful, id, req)

	promote(t, servers)
	err := reached(t, func() error {
		rec, err := s.Get(t.Context(), id)
		if err == nil && (rec.State != driver.StatePending || rec.Attempt.Nonce != req.Nonce) {
			t.Errorf("Get(%v) of an acknowledged record = %v, want pending", id, rec.State)
		}
		return err
	})
	if err != nil {
		t.Errorf("Get(%v) = %v, want <nil>", id, err)
	}
	other := req
	other.Nonce = driver.NewNonce()
	err = reached(t, func() error {
		res, err := s.Begin(t.Context(), id, other)
		if res.Begun {
			t.Errorf("Begin(%v) by another attempt = begun, want the pending record", id)
		}
		return err
	})
	if err != nil {
		t.Errorf("Begin(%v) by another attempt = %v, want <nil>", id, err)
	}
	wantReachedAndWorking(t, s)

	// The new primary has no replica until the old one comes back as one.
	err = nil
	await(t, "the careful client to reach the new primary", func() error {
		_, err = careful.Begin(t.Context(), id, req)
		if !strings.Contains(fmt.Sprint(err), "0 of 1 replicas") {
			return fmt.Errorf("Begin(%v) = %w, want it to tell of 0 of 1 replicas", id, err)
		}
		return nil
	})
	servers.Primary().Restart()
	await(t, "Ping once the old primary is a replica", func() error { return careful.Ping(t.Context()) })
	err = reached(t, func() error {
		res, err := careful.Begin(t.Context(), id, req)
		if err == nil && !res.Begun {
			t.Errorf("Begin(%v) by the same attempt = not begun, want begun", id)
		}
		return err
	})
	if err != nil {
		t.Errorf("Begin(%v) by the same attempt = %v, want <nil>", id, err)
	}
	wantReachedAndWorking(t, careful)
}

// Redis promotes a replica without the pending records. This shows the limit in the
// package comment, and the use of WithReplicas.
func TestFailoverToAReplicaThatLagsBehind(t *testing.T) {
	t.Parallel()
	servers := testserver.StartSentinel(t, 1)
	w := new(register)
	s := open(t, connect(t, sentinelAddr(servers)), witnessed(w))
	careful := open(t, connect(t, sentinelAddr(servers)), witnessed(w), WithReplicas(1, patient))
	if err := servers.Primary().AwaitReplica(servers.Replica()); err != nil {
		t.Fatal(err)
	}
	if err := servers.Replica().CutOff(servers.Primary()); err != nil {
		t.Fatal(err)
	}
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, s, id, req) // its handler charges the card now
	careID, careReq := newAttempt(driver.ClientKey)
	hasty := open(t, connect(t, sentinelAddr(servers)), witnessed(w), WithReplicas(1, impatient))
	wantRefused(t, hasty, careID, careReq) // its handler has not run

	promote(t, servers)
	err := reached(t, func() error {
		rec, err := s.Get(t.Context(), id)
		if err == nil && rec.State != driver.StateNone {
			t.Errorf("Get(%v) of a record that was not replicated = %v, want none", id, rec.State)
		}
		return err
	})
	if err != nil {
		t.Errorf("Get(%v) = %v, want no loss told: the incarnation is the same", id, err)
	}
	again := req
	again.Nonce = driver.NewNonce()
	again.Fence.Token++
	if a := mustBegin(t, s, id, again); a.Number != 1 {
		t.Errorf("Begin(%v) of a repeat = attempt %d, want the documented limit: 1, again", id, a.Number)
	}

	servers.Primary().Restart() // comes back as the replica
	if err := servers.Replica().AwaitReplica(servers.Primary()); err != nil {
		t.Fatal(err)
	}
	careReq.Nonce = driver.NewNonce()
	careReq.Fence.Token++
	err = reached(t, func() error {
		res, err := careful.Begin(t.Context(), careID, careReq)
		if err == nil && (!res.Begun || res.Record.Attempt.Number != 1) {
			t.Errorf("Begin(%v) of a retry = %v at attempt %d, want begun at 1", careID, res.Begun, res.Record.Attempt.Number)
		}
		return err
	})
	if err != nil {
		t.Errorf("Begin(%v) of a retry = %v, want begun", careID, err)
	}
}

func TestFailoverToAnEmptyReplicaIsALoss(t *testing.T) {
	t.Parallel()
	for name, empty := range map[string]func(*testing.T, *testserver.Sentinel){
		"that never got anything": func(t *testing.T, servers *testserver.Sentinel) {
			if err := servers.Replica().CutOff(servers.Primary()); err != nil {
				t.Fatal(err)
			}
			for _, cmd := range [][]string{{"CONFIG", "SET", "replica-read-only", "no"}, {"FLUSHALL"}, {"CONFIG", "SET", "replica-read-only", "yes"}} {
				if _, err := servers.Replica().Do(cmd...); err != nil {
					t.Fatal(err)
				}
			}
		},
		"that copied an empty primary": func(t *testing.T, servers *testserver.Sentinel) {
			servers.Primary().Restart() // keeps nothing
			if err := servers.Primary().AwaitReplica(servers.Replica()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			servers := testserver.StartSentinel(t, 1)
			w := new(register)
			s := open(t, connect(t, sentinelAddr(servers)), witnessed(w))
			alone := open(t, connect(t, sentinelAddr(servers))) // remembers the incarnations from its start
			id, req := newAttempt(driver.ClientKey)
			mustBegin(t, s, id, req)
			empty(t, servers)
			promote(t, servers)
			for _, s := range []*Store{s, alone} {
				if err := reached(t, func() error { _, err := s.Get(t.Context(), id); return err }); !errors.Is(err, driver.ErrStoreLost) {
					t.Errorf("Get(%v) = %v, want %v", id, err, driver.ErrStoreLost)
				}
				wantLost(t, s)
			}
			wantLost(t, open(t, connect(t, sentinelAddr(servers)), witnessed(w)))
			if n, err := s.AcceptLoss(t.Context()); err != nil || n != Shards {
				t.Errorf("AcceptLoss() = %d, %v, want %d", n, err, Shards)
			}
			wantReachedAndWorking(t, s)
		})
	}
}
