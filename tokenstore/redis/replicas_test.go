package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Long enough for a replica on a busy machine, and short enough to run out.
const (
	patient   = 10 * time.Second
	impatient = 300 * time.Millisecond
)

// await waits until cond returns nil.
func await(tb testing.TB, what string, cond func() error) {
	tb.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(testserver.StartTimeout)
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			tb.Fatalf("%s: not within %v: %v", what, testserver.StartTimeout, err)
		}
	}
}

// wantRefused requires that a Begin is refused for want of replicas.
func wantRefused(tb testing.TB, s *Store, id driver.KeyID, req driver.BeginRequest) {
	tb.Helper()
	res, err := s.Begin(tb.Context(), id, req)
	if !errors.Is(err, driver.ErrUnavailable) || res.Begun || !strings.Contains(fmt.Sprint(err), "0 of 1 replicas") {
		tb.Errorf("Begin(%v) = %v, %v, want a refusal that tells of 0 of 1 replicas", id, res.Begun, err)
	}
}

func TestBeginWaitsForReplicas(t *testing.T) {
	servers := testserver.StartSentinel(t, 1)
	primary, replica := servers.Primary(), servers.Replica()
	s := open(t, connect(t, primary.URL()), WithReplicas(1, patient))
	for range 2 { // the second time the server knows the script
		id, req := newAttempt(driver.ClientKey)
		mustBegin(t, s, id, req)
		if got, err := replica.Do("EXISTS", s.keys.record(id)); err != nil || got[0] != "1" {
			t.Errorf("EXISTS of the record on the replica = %v, %v, want 1", got, err)
		}
	}

	if attached, wanted, err := s.Replicas(t.Context()); attached != 1 || wanted != 1 || err != nil {
		t.Errorf("Replicas() = %d, %d, %v, want 1 and 1", attached, wanted, err)
	}

	t.Run("in one round trip", func(t *testing.T) {
		client := connect(t, primary.URL())
		s := open(t, client, WithReplicas(1, patient), asksOnce())
		id, req := newAttempt(driver.ClientKey)
		mustBegin(t, s, id, req) // there is a connection
		h := new(hook)
		client.AddHook(h)
		id, req = newAttempt(driver.ClientKey)
		mustBegin(t, s, id, req)
		if got := h.n.Load(); got != 1 {
			t.Errorf("Begin() took %d round trips, want 1", got)
		}
	})
	t.Run("when the server has forgotten the script", func(t *testing.T) {
		if _, err := primary.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
		id, req := newAttempt(driver.ClientKey)
		mustBegin(t, s, id, req)
	})
	t.Run("when its reply was lost", func(t *testing.T) {
		proxy := testserver.StartRedisProxy(t, primary.Addr())
		s := open(t, connect(t, "redis://"+proxy.Addr()), WithReplicas(1, patient))
		id, req := newAttempt(driver.ClientKey)
		dropped := proxy.DropNextReply(testserver.Contains(id.String()))
		mustBegin(t, s, id, req)
		select {
		case <-dropped:
		default:
			t.Error("no reply was lost")
		}
	})
}

// A replica that stands still: connected, and acknowledging nothing.
func TestReplicaThatDoesNotAcknowledge(t *testing.T) {
	servers := testserver.StartSentinel(t, 1)
	primary, replica := servers.Primary(), servers.Replica()
	s := open(t, connect(t, primary.URL()), WithReplicas(1, impatient))
	knownID, known := newAttempt(driver.ClientKey)
	await(t, "a first Begin", func() error { _, err := s.Begin(t.Context(), knownID, known); return err })
	replica.Pause()

	id, req := newAttempt(driver.ClientKey)
	wantRefused(t, s, id, req)
	t.Run("resent over another connection", func(t *testing.T) {
		wantRefused(t, open(t, connect(t, primary.URL()), WithReplicas(1, impatient)), id, req)
	})
	t.Run("resent, it writes", func(t *testing.T) {
		// WAIT asks for an offset that the server keeps per connection. Redis 7.0
		// and older set it to the latest offset of all with every command, newer
		// ones only where the command wrote: there a fresh connection that has only
		// read is told of replicas that know nothing of the record. So a Begin that
		// finds itself begun has to write, which is seen by a WATCH.
		watcher := connect(t, primary.URL())
		err := watcher.Watch(t.Context(), func(tx *goredis.Tx) error {
			wantRefused(t, s, id, req)
			_, err := tx.TxPipelined(t.Context(), func(pipe goredis.Pipeliner) error { return pipe.Ping(t.Context()).Err() })
			return err
		}, s.keys.record(id))
		if !errors.Is(err, goredis.TxFailedErr) {
			t.Errorf("EXEC after a resent Begin on the watched record = %v, want %v", err, goredis.TxFailedErr)
		}
	})
	t.Run("a Begin that only finds a record needs none", func(t *testing.T) {
		other := known
		other.Nonce = driver.NewNonce()
		if res, err := s.Begin(t.Context(), knownID, other); err != nil || res.Begun || res.Record.State != driver.StatePending {
			t.Errorf("Begin(%v) by another attempt = %v, %v, %v, want the pending record", knownID, res.Begun, res.Record.State, err)
		}
		other.Fence.Token--
		if _, err := s.Begin(t.Context(), knownID, other); !errors.Is(err, driver.ErrStaleFence) {
			t.Errorf("Begin(%v) with an older fence = %v, want %v", knownID, err, driver.ErrStaleFence)
		}
	})
	t.Run("within the caller's deadline", func(t *testing.T) {
		s := open(t, connect(t, primary.URL()), WithReplicas(1, patient))
		id, req := newAttempt(driver.ClientKey)
		ctx, cancel := context.WithTimeout(t.Context(), patient/2)
		defer cancel()
		res, err := s.Begin(ctx, id, req)
		if !errors.Is(err, driver.ErrUnavailable) || res.Begun || ctx.Err() != nil || !strings.Contains(err.Error(), "0 of 1") {
			t.Errorf("Begin(%v) with half of that time = %v, %v, and %v, want a refusal before the deadline", id, res.Begun, err, ctx.Err())
		}
	})

	replica.Resume()
	await(t, "a Begin once the replica is back", func() error { _, err := s.Begin(t.Context(), id, req); return err })
}

func TestPingTellsOfMissingReplicas(t *testing.T) {
	t.Parallel()
	servers := testserver.StartSentinel(t, 1)
	primary, replica := servers.Primary(), servers.Replica()
	s := open(t, connect(t, primary.URL()), WithReplicas(1, impatient))
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}
	if err := replica.CutOff(primary); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 1") {
		t.Errorf("Ping() without the replica = %v, want %v", err, driver.ErrUnavailable)
	}
	id, req := newAttempt(driver.ClientKey)
	wantRefused(t, s, id, req)

	var log bytes.Buffer
	open(t, connect(t, primary.URL()), WithReplicas(1, impatient), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if !strings.Contains(log.String(), "too few replicas") {
		t.Errorf("New() logs %q, want a warning of too few replicas", log.String())
	}

	if err := replica.Rejoin(); err != nil {
		t.Fatal(err)
	}
	await(t, "Ping once the replica is back", func() error { return s.Ping(t.Context()) })
	await(t, "Begin once the replica is back", func() error { // it may still be slow
		res, err := s.Begin(t.Context(), id, req)
		if err == nil && !res.Begun {
			t.Fatalf("Begin() once the replica is back = %+v, want begun", res)
		}
		return err
	})
}

func TestReplicasOfACluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
	s := open(t, connect(t, clusterAddr(c)), WithReplicas(1, patient))
	quick := open(t, connect(t, clusterAddr(c)), WithReplicas(1, impatient))
	first := make(map[*testserver.Redis]driver.KeyID) // one key per master
	reqs := make(map[driver.KeyID]driver.BeginRequest)
	for shard := range Shards {
		id, req := newAttempt(driver.ClientKey)
		id[0] = byte(shard)
		mustBegin(t, s, id, req)
		node, err := c.NodeFor(s.keys.record(id))
		if err != nil {
			t.Fatal(err)
		}
		first[node], reqs[id] = id, req
	}
	if len(first) != 3 {
		t.Fatalf("the shards are on %d masters, want 3", len(first))
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}

	master, replica := c.Nodes()[0], c.Replicas()[0]
	replica.Pause()
	for node, id := range first {
		id[1] ^= 1
		_, req := newAttempt(driver.ClientKey)
		if node == master {
			wantRefused(t, quick, id, req)
		} else {
			mustBegin(t, s, id, req)
		}
	}
	replica.Resume()
	if err := master.AwaitReplica(replica); err != nil {
		t.Fatal(err)
	}

	// The replica takes over, and has no replica itself.
	master.Kill()
	if err := replica.TakeOver(); err != nil {
		t.Fatal(err)
	}
	id := first[master]
	await(t, "the new master to be found", func() error {
		if _, err := quick.Begin(t.Context(), id, reqs[id]); !strings.Contains(fmt.Sprint(err), "0 of 1 replicas") {
			return fmt.Errorf("Begin(%v) = %w, want it to tell of 0 of 1 replicas", id, err)
		}
		return nil
	})
	await(t, "the record at the new master", func() error {
		rec, err := s.Get(t.Context(), id)
		if err == nil && (rec.State != driver.StatePending || rec.Attempt.Number != 1) {
			t.Fatalf("Get(%v) from the new master = %v at attempt %d, want pending at 1", id, rec.State, rec.Attempt.Number)
		}
		return err
	})
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Ping() = %v, want %v", err, driver.ErrUnavailable)
	}
	if attached, wanted, err := s.Replicas(t.Context()); attached != 0 || wanted != 1 || err != nil {
		t.Errorf("Replicas() = %d, %d, %v, want 0 for the new master, and 1", attached, wanted, err)
	}
}
