package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// While a cluster moves the slot of a shard, the outcomes in it are replayed, nothing counts as missing or lost, and
// new attempts are refused as by a store without writes. A settlement is stored when the move is over.
func TestRecordsOfASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.OnRedisMachine(testserver.NewMachine(t)), testserver.WithRedisArgs("--cluster-require-full-coverage", "no"))
	s := open(t, connect(t, clusterAddr(c)))
	inShard := func() (driver.KeyID, driver.BeginRequest) {
		id, req := newAttempt(driver.ClientKey)
		id[0] = 7
		return id, req
	}
	want := make(map[driver.KeyID]string)
	for i := range 12 { // the move takes two steps
		id, req := inShard()
		want[id] = strings.Repeat("x", 10+i%2*3000) // inline, and apart
		if res, err := s.Settle(t.Context(), id, completion(mustBegin(t, s, id, req), want[id])); err != nil || !res.Settled {
			t.Fatalf("Settle() = %v, %v", res.Settled, err)
		}
	}
	expired, req := inShard()
	req.ResultTTL = time.Millisecond
	st := completion(mustBegin(t, s, expired, req), "")
	st.ResultTTL = req.ResultTTL
	if res, err := s.Settle(t.Context(), expired, st); err != nil || !res.Settled {
		t.Fatalf("Settle() = %v, %v", res.Settled, err)
	}
	await(t, "the end of a result", func() error {
		if rec, err := s.Get(t.Context(), expired); err != nil || rec.State != driver.StateExpired {
			return fmt.Errorf("Get() = %v, %w", rec.State, err)
		}
		return nil
	})
	running, req := inShard()
	attempt := mustBegin(t, s, running, req)
	refused, steps := 0, 0
	move := func() error {
		return c.MoveSlot(s.keys.record(running), 0, func() {
			steps++
			for id, body := range want {
				if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateCompleted || rec.Response == nil || string(rec.Response.Body) != body {
					t.Errorf("Get() = %v, %v in step %d, want the outcome", rec.State, err, steps)
				}
			}
			if rec, err := s.Get(t.Context(), running); err != nil || rec.State != driver.StatePending {
				t.Errorf("Get() of a running attempt = %v, %v in step %d", rec.State, err, steps)
			}
			fresh, req := inShard()
			if rec, err := s.Get(t.Context(), fresh); err != nil && !errors.Is(err, driver.ErrNoWrites) || err == nil && rec.State != driver.StateNone {
				t.Errorf("Get() of no record = %v, %v in step %d", rec.State, err, steps)
			}
			if rec, err := s.Get(t.Context(), expired); err != nil && !errors.Is(err, driver.ErrNoWrites) || err == nil && rec.State != driver.StateExpired {
				t.Errorf("Get() of an expired result = %v, %v in step %d", rec.State, err, steps)
			}
			if _, err := s.Begin(t.Context(), fresh, req); err != nil {
				refused++
				if !errors.Is(err, driver.ErrNoWrites) {
					t.Errorf("Begin() = %v in step %d, want %v", err, steps, driver.ErrNoWrites)
				}
			}
			if err := s.Ping(t.Context()); err != nil && !errors.Is(err, driver.ErrNoWrites) {
				t.Errorf("Ping() = %v in step %d, want %v", err, steps, driver.ErrNoWrites)
			}
			page, err := s.ListOpen(t.Context(), driver.OpenQuery{})
			if err == nil && len(page.Records) == 0 {
				t.Errorf("ListOpen() lacks the running attempt in step %d, and has no error", steps)
			}
			stranger := completion(driver.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce}, "late")
			if res, err := s.Settle(t.Context(), running, stranger); err == nil && res.Settled || err != nil && !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Settle() of another attempt = %v, %v in step %d", res.Settled, err, steps)
			}
		})
	}
	await(t, "the move of the slot", move)
	if refused == 0 {
		t.Error("no Begin was refused, so the test shows nothing")
	}
	if res, err := s.Settle(t.Context(), running, completion(attempt, "late")); err != nil || !res.Settled {
		t.Errorf("Settle() after the move = %v, %v, want settled", res.Settled, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() after the move = %v", err)
	}
	id, req := inShard()
	mustBegin(t, s, id, req)
	wantLossOfOneServer(t, c, s)
}

// wantLossOfOneServer has the clock of one server of a cluster jump ahead, while another server does not answer. That
// is a loss of all shards that the first one has, also after they were moved there, and of no other shard.
func wantLossOfOneServer(t *testing.T, c *testserver.RedisCluster, s *Store) {
	t.Helper()
	begin := func(shard int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		id, req := newAttempt(driver.ClientKey)
		id[0] = byte(shard)
		_, err := s.Begin(ctx, id, req)
		return err
	}
	owner := func(shard int) *testserver.Redis {
		node, _, err := c.Owner(s.keys.incarnation(shard))
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	node := owner(7)
	hangs := slices.IndexFunc(c.Nodes(), func(other *testserver.Redis) bool { return other.Addr() != node.Addr() })
	c.Nodes()[hangs].Pause()
	node.StepClock(3 * time.Minute) // too short to leave a trace in shards that no call uses meanwhile
	await(t, "the mark of a look at all servers", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		err := s.Ping(ctx)
		incarnation, failed := node.Do("GET", s.keys.incarnation(7))
		if failed == nil && !strings.HasPrefix(incarnation[0], "jumped:") {
			failed = fmt.Errorf("Ping() = %w, and the shard has no mark", err)
		}
		return failed
	})
	await(t, "the notice of the jump", func() error {
		if err := begin(7); !errors.Is(err, driver.ErrStoreLost) {
			return fmt.Errorf("Begin() = %w, want %w", err, driver.ErrStoreLost)
		}
		return nil
	})
	c.Nodes()[hangs].Resume()
	node.StepClock(0)
	await(t, "the right time", func() error {
		now, err := node.Do("TIME")
		if err != nil {
			return err
		}
		seconds, err := strconv.ParseInt(now[0], 10, 64)
		if ahead := time.Until(time.Unix(seconds, 0)); err == nil && ahead > 10*time.Second {
			err = fmt.Errorf("the clock is %v ahead", ahead)
		}
		return err
	})
	lost := 0
	for shard := range Shards {
		its := owner(shard) == node
		if its {
			lost++
		}
		await(t, "an answer of the shard", func() error { // the others may have taken the server for dead
			if err := begin(shard); errors.Is(err, driver.ErrStoreLost) != its || !its && err != nil {
				return fmt.Errorf("Begin() in shard %d = %w, want a loss: %v", shard, err, its)
			}
			return nil
		})
	}
	if n, err := s.AcceptLoss(t.Context()); err != nil || n != lost || lost == Shards {
		t.Errorf("AcceptLoss() = %d, %v, want %d of %d", n, err, lost, Shards)
	}
	if err := begin(7); err != nil {
		t.Errorf("Begin() after the loss was accepted = %v", err)
	}
}
