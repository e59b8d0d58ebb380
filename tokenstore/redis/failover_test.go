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

// wantGet requires a record, once the new primary is reached.
func wantGet(t *testing.T, s *Store, id driver.KeyID, want driver.State, nonce driver.Nonce) {
	t.Helper()
	var rec driver.Record
	err := reached(t, func() (err error) { rec, err = s.Get(t.Context(), id); return err })
	if err != nil || rec.State != want || rec.Attempt.Nonce != nonce {
		t.Errorf("Get(%v) = %v of %v, %v, want %v of %v", id, rec.State, rec.Attempt.Nonce, err, want, nonce)
	}
}

// wantBegin requires what a Begin finds, once the new primary is reached.
func wantBegin(t *testing.T, s *Store, id driver.KeyID, req driver.BeginRequest, begun bool) {
	t.Helper()
	var res driver.BeginResult
	err := reached(t, func() (err error) { res, err = s.Begin(t.Context(), id, req); return err })
	if err != nil || res.Begun != begun || res.Record.Attempt.Number != 1 {
		t.Errorf("Begin(%v) = begun %v at attempt %d, %v, want begun %v at 1", id, res.Begun, res.Record.Attempt.Number, err, begun)
	}
}

// wantReachedAndWorking requires that the store takes fresh keys once each of its
// connections leads to the new primary.
func wantReachedAndWorking(t *testing.T, s *Store) {
	t.Helper()
	id, req := newAttempt(driver.ClientKey)
	wantBegin(t, s, id, req, true)
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
	wantGet(t, s, id, driver.StatePending, req.Nonce)
	other := req
	other.Nonce = driver.NewNonce()
	wantBegin(t, s, id, other, false)
	wantReachedAndWorking(t, s)

	// The new primary has no replica until the old one comes back as one.
	await(t, "the careful client to reach the new primary", func() error {
		if _, err := careful.Begin(t.Context(), id, req); !strings.Contains(fmt.Sprint(err), "0 of 1 replicas") {
			return fmt.Errorf("Begin(%v) = %w, want it to tell of 0 of 1 replicas", id, err)
		}
		return nil
	})
	servers.Primary().Restart()
	await(t, "Ping once the old primary is a replica", func() error { return careful.Ping(t.Context()) })
	wantBegin(t, careful, id, req, true) // by the same attempt
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
	if err := errors.Join(servers.Primary().AwaitReplica(servers.Replica()), servers.Replica().CutOff(servers.Primary())); err != nil {
		t.Fatal(err)
	}
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, s, id, req) // its handler charges the card now
	careID, careReq := newAttempt(driver.ClientKey)
	hasty := open(t, connect(t, sentinelAddr(servers)), witnessed(w), WithReplicas(1, impatient))
	wantRefused(t, hasty, careID, careReq) // its handler has not run

	promote(t, servers)
	wantGet(t, s, id, driver.StateNone, driver.Nonce{}) // and no loss is told: the incarnation is the same
	req.Nonce = driver.NewNonce()
	req.Fence.Token++
	wantBegin(t, s, id, req, true) // the documented limit: the repeat is attempt 1, again

	servers.Primary().Restart() // comes back as the replica
	if err := servers.Replica().AwaitReplica(servers.Primary()); err != nil {
		t.Fatal(err)
	}
	careReq.Nonce = driver.NewNonce()
	careReq.Fence.Token++
	wantBegin(t, careful, careID, careReq, true)
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
			mustAccept(t, s, Shards)
			wantReachedAndWorking(t, s)
		})
	}
}
