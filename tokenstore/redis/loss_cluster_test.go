package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// One primary of a cluster loses its records. Its shards refuse, and the others go on.
func TestOnePrimaryOfAClusterLosesItsData(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	victim := c.Nodes()[1]
	for name, lose := range map[string]func(){
		"wiped": func() {
			if _, err := victim.Do("FLUSHALL"); err != nil {
				t.Fatal(err)
			}
		},
		"restarted empty": func() {
			victim.Kill()
			victim.Restart()
			if err := c.AwaitComplete(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := new(register)
			client := connect(t, clusterAddr(c))
			s := open(t, client, WithPrefix(freshPrefix(t)), witnessed(w))
			var ids [Shards]driver.KeyID
			var reqs [Shards]driver.BeginRequest
			var lost [Shards]bool
			count := 0
			for shard := range Shards {
				ids[shard], reqs[shard] = newAttempt(driver.ClientKey)
				ids[shard][0] = byte(shard)
				mustBegin(t, s, ids[shard], reqs[shard])
				node, err := c.NodeFor(s.keys.incarnation(shard))
				if err != nil {
					t.Fatal(err)
				}
				if lost[shard] = node == victim; lost[shard] {
					count++
				}
			}
			if count == 0 || count == Shards {
				t.Fatalf("%d shards are on the victim, want some", count)
			}
			lose()
			await(t, "the cluster", func() error {
				if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrStoreLost) {
					return errors.Join(errors.New("Ping() tells of no loss"), err)
				}
				return nil
			})
			for shard := range Shards {
				fresh, req := newAttempt(driver.ClientKey)
				fresh[0] = byte(shard)
				_, errFresh := s.Get(t.Context(), fresh)
				rec, errGet := s.Get(t.Context(), ids[shard])
				res, errBegin := s.Begin(t.Context(), fresh, req)
				if !lost[shard] {
					if errFresh != nil || errGet != nil || rec.State != driver.StatePending || errBegin != nil || !res.Begun {
						t.Errorf("shard %d, which lost nothing: Get of nothing %v, of a record %v, %v, Begin %v, %v",
							shard, errFresh, rec.State, errGet, res.Begun, errBegin)
					}
					continue
				}
				for call, err := range map[string]error{"Get of nothing": errFresh, "Get of a lost record": errGet, "Begin": errBegin} {
					if !errors.Is(err, driver.ErrStoreLost) {
						t.Errorf("shard %d, which lost its records: %s = %v, want %v", shard, call, err, driver.ErrStoreLost)
					}
				}
			}
			mustAccept(t, s, count)
			wantWorking(t, s)
		})
	}
}

func TestFailoverOfAClusterPrimary(t *testing.T) {
	t.Parallel()
	for name, wipe := range map[string]bool{"to a replica that has everything": false, "to an empty replica": true} {
		t.Run(name, func(t *testing.T) {
			c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
			master, replica := c.Nodes()[0], c.Replicas()[0]
			s := open(t, connect(t, clusterAddr(c)), witnessed(new(register)))
			id, req := newAttempt(driver.ClientKey)
			for shard := range Shards {
				id[0] = byte(shard)
				if node, err := c.NodeFor(s.keys.record(id)); err != nil {
					t.Fatal(err)
				} else if node == master {
					break
				}
			}
			mustBegin(t, s, id, req)
			if err := master.AwaitReplica(replica); err != nil {
				t.Fatal(err)
			}
			if wipe {
				if _, err := master.Do("FLUSHALL"); err != nil {
					t.Fatal(err)
				}
				if err := master.AwaitReplica(replica); err != nil {
					t.Fatal(err)
				}
			}
			master.Kill()
			if err := replica.TakeOver(); err != nil {
				t.Fatal(err)
			}
			var rec driver.Record
			err := reached(t, func() (err error) { rec, err = s.Get(t.Context(), id); return err })
			if wipe && !errors.Is(err, driver.ErrStoreLost) {
				t.Errorf("Get(%v) = %v, want %v", id, err, driver.ErrStoreLost)
			}
			if !wipe && (err != nil || rec.State != driver.StatePending) {
				t.Errorf("Get(%v) = %v, %v, want pending", id, rec.State, err)
			}
		})
	}
}

// However it falls between the commands of concurrent requests: once FLUSHALL has
// answered nothing begins, until the loss is accepted.
func TestNothingBeginsAfterAFlushUnderLoad(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	w := new(register)
	stores := []*Store{
		open(t, connect(t, r.URL()), witnessed(w), withRecheck(0)),
		open(t, connect(t, r.URL()), witnessed(w), withRecheck(0)),
		open(t, connect(t, r.URL())), // by its own memory
	}
	ctx, stop := context.WithCancel(t.Context())
	var flushed atomic.Bool
	var before, refused atomic.Int64
	var wg sync.WaitGroup
	for _, s := range append(stores, stores...) {
		wg.Go(func() {
			for ctx.Err() == nil {
				id, req := newAttempt(driver.ClientKey)
				late := flushed.Load()
				res, err := s.Begin(t.Context(), id, req)
				switch {
				case late && (res.Begun || !errors.Is(err, driver.ErrStoreLost)):
					t.Errorf("Begin(%v) after the flush = %v, %v, want %v", id, res.Begun, err, driver.ErrStoreLost)
				case late:
					refused.Add(1)
				case err == nil:
					before.Add(1)
				case !errors.Is(err, driver.ErrStoreLost):
					t.Errorf("Begin(%v) = %v", id, err)
				}
			}
		})
	}
	atLeast := func(what string, n *atomic.Int64, want int64) {
		await(t, what, func() error {
			if n.Load() < want {
				return errors.New("not yet")
			}
			return nil
		})
	}
	atLeast("load", &before, 200)
	if _, err := r.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	flushed.Store(true)
	atLeast("refusals", &refused, 200)
	stop()
	wg.Wait()
	mustAccept(t, stores[0], Shards)
	wantWorking(t, stores[0])
	wantWorking(t, stores[1])
	wantLost(t, stores[2]) // has to be told itself
}
