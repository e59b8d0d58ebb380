package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

const (
	// maxStep is how much further one clock may move than another one. lua/clock.lua has the
	// same number.
	maxStep = time.Minute
	// freshness bounds how old a reading may be when its answer is judged. A process that was
	// paused in between reads its clocks again.
	freshness = 5 * time.Second
	// noteEvery is the least time between two observations of a server's clock.
	noteEvery = time.Second
	// maxReadings bounds how often a call whose reading became too old is sent again.
	maxReadings = 3
)

// ClockChange says that a clock did not move as the others did.
type ClockChange struct {
	Kind ClockChangeKind
	// By is how much further the clock moved than the lease clock of the process. It is
	// negative for a clock that went back. It is 0 if that is not known.
	By time.Duration
}

// ClockChangeKind is the kind of a [ClockChange].
type ClockChangeKind uint8

// What a [ClockChange] may be.
const (
	ServerJumped  ClockChangeKind = iota + 1 // the clock of Redis jumped ahead, and the shards count as lost
	ServerBack                               // the clock of Redis went back, and nothing is refused
	WallMoved                                // the wall clock of the process was set
	ProcessPaused                            // the process was suspended, and its lease clock does not know
)

// String returns the kind in words.
func (k ClockChangeKind) String() string {
	switch k {
	case ServerJumped:
		return "the clock of Redis jumped ahead"
	case ServerBack:
		return "the clock of Redis went back"
	case WallMoved:
		return "the wall clock of the process was set"
	case ProcessPaused:
		return "the process was suspended"
	}
	return fmt.Sprintf("ClockChangeKind(%d)", uint8(k))
}

// clocks compares the clock of each server with the two clocks of the process: the wall
// clock, which may be set, and the lease clock, which cannot. Two of the three decide which
// one is wrong. It is safe for concurrent use. lua/clock.lua tells what the shards keep.
type clocks struct {
	wall    func() time.Time
	lease   leaseclock.Source
	changed func(context.Context, ClockChange)
	single  bool // all shards are on one server

	mu   sync.Mutex
	seen [Shards]observation // the last one of each shard's server; one server uses the first
}

// reading is what the process's clocks said before a call.
type reading struct {
	wall  time.Time
	lease leaseclock.Instant
	last  observation // of the server
	sure  bool        // the process knows that the server's clock is right
}

// observation is a server's time and the reading of the call that brought it.
type observation struct {
	server   time.Time // the zero time if there is none yet
	wall     time.Time
	lease    leaseclock.Instant
	answered leaseclock.Instant // when its answer was there
}

func (c *clocks) of(shard int) *observation {
	if c.single {
		shard = 0
	}
	return &c.seen[shard]
}

// read reads the clocks for a call.
func (c *clocks) read(shard int) reading {
	r := reading{wall: c.wall(), lease: c.lease()}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.last = *c.of(shard)
	return r
}

// packed is the reading as the scripts take it.
func (r reading) packed() string { return packTime(r.wall) + packTime(r.expected()) }

// expected is the server's time by the lease clock, or the zero time.
func (r reading) expected() time.Time {
	switch {
	case r.sure:
		return time.UnixMilli(1<<48 - 1)
	case r.last.server.IsZero():
		return time.Time{}
	}
	return r.last.server.Add(r.lease.Sub(r.last.lease))
}

// moved returns how much further the server's clock and the wall clock moved than the lease
// clock did, since the last observation.
func (r reading) moved(server time.Time) (serverBy, wallBy time.Duration) {
	lease := r.lease.Sub(r.last.lease)
	return server.Sub(r.last.server) - lease, r.wall.Round(0).Sub(r.last.wall.Round(0)) - lease
}

func (c *clocks) fresh(r reading) bool { return c.lease().Sub(r.lease) <= freshness }

// note keeps the server's time of an answer that shows no jump, and reports a clock that
// moved unlike the others.
func (c *clocks) note(ctx context.Context, shard int, r reading, server time.Time) {
	if server.IsZero() || !c.fresh(r) {
		return
	}
	var change ClockChange
	if !r.last.server.IsZero() {
		serverBy, wallBy := r.moved(server)
		switch near := (serverBy - wallBy).Abs() <= maxStep; {
		case serverBy > maxStep && near:
			change = ClockChange{ProcessPaused, wallBy}
		case serverBy < -maxStep:
			change = ClockChange{ServerBack, serverBy}
		case wallBy.Abs() > maxStep:
			change = ClockChange{WallMoved, wallBy}
		case r.lease.Sub(r.last.lease) < noteEvery:
			return
		}
	}
	c.mu.Lock()
	last := c.of(shard)
	first := *last == r.last // another call may have been faster
	if first {
		*last = observation{server: server, wall: r.wall, lease: r.lease, answered: c.lease()}
	}
	c.mu.Unlock()
	if first && change.Kind != 0 {
		c.changed(ctx, change)
	}
}

// ask runs a call that looks at the evidence of a shard's clock. jumped says that the clock
// seems to have jumped ahead. ask then finds out whether that is true: the call may have
// come late, or the clocks of the process may be wrong. If it is true, the shards of the
// server are marked as lost and the verdict is verdictLost.
func (s *Store) ask(ctx context.Context, method string, shard int, call func(reading) (reply, error)) (r reply, err error) {
	sure, mark := false, s.loss.Marker()
	for range maxReadings {
		now := s.clocks.read(shard)
		now.sure = sure
		if r, err = call(now); err != nil {
			return r, err
		}
		if r.verdict != verdictJumped {
			s.clocks.note(ctx, shard, now, r.now)
			return r, nil
		}
		if !s.clocks.fresh(now) {
			continue
		}
		by := time.Duration(0)
		if !now.last.server.IsZero() {
			serverBy, wallBy := now.moved(r.now)
			if by = serverBy; !r.tripped && serverBy > maxStep && (serverBy-wallBy).Abs() <= maxStep {
				sure = true // the wall clock moved as far as the server's
				continue
			}
		}
		s.clocks.changed(ctx, ClockChange{ServerJumped, by})
		if err := s.markJump(ctx, shard, mark); err != nil {
			return r, s.failed(ctx, method, err)
		}
		r.verdict = verdictLost
		return r, nil
	}
	return r, fmt.Errorf("tokenstore/redis: %s: %w: the process was too slow to judge the clock of Redis", method, driver.ErrUnavailable)
}

// markJump marks all shards on the server of a shard. Redis may have deleted keys of any of
// them. A read-only store marks nothing.
//
// The servers of a cluster are asked for their shards, because the client may not know yet that a
// slot has moved. The server that the client knows comes first, and without it each server is
// marked as it answers, so that another one that hangs does not hold up the mark. A jump that is
// not marked may leave no trace.
func (s *Store) markJump(ctx context.Context, shard int, mark func(context.Context, []int) error) error {
	if s.readOnly {
		return nil
	}
	cluster, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		var all []int
		for other := range Shards {
			all = append(all, other)
		}
		return mark(ctx, all)
	}
	if node, err := cluster.MasterForKey(ctx, s.keys.incarnation(shard)); err == nil {
		if its := s.shardsOn(ctx, node); slices.Contains(its, shard) {
			return mark(ctx, its)
		}
	}
	var found atomic.Bool
	err := redisserver.EachPrimary(ctx, cluster, func(ctx context.Context, node *goredis.Client) error {
		its := s.shardsOn(ctx, node)
		if !slices.Contains(its, shard) {
			return nil
		}
		found.Store(true)
		return mark(ctx, its)
	})
	if err == nil && !found.Load() {
		err = fmt.Errorf("no server has the slot of shard %d", shard)
	}
	return err
}

// shardsOn returns the shards on a server of a cluster, and none if it does not answer.
func (s *Store) shardsOn(ctx context.Context, node *goredis.Client) (its []int) {
	pipe := node.Pipeline()
	for shard := range Shards {
		pipe.Exists(ctx, s.keys.incarnation(shard))
	}
	answers, _ := pipe.Exec(ctx) // each answer has its error
	for shard, answer := range answers {
		if err := answer.Err(); err == nil || goredis.HasErrorPrefix(err, "ASK") {
			its = append(its, shard)
		}
	}
	return its
}

// evidence is what a shard keeps of its clock. lua/clock.lua has the table.
type evidence struct{ highest, wall, canary time.Time }

func unpackEvidence(packed string) evidence {
	f := fields(packed)
	return evidence{highest: f.time(), wall: f.time(), canary: f.time()}
}

// jumped reports whether a read shows that the clock of its server has jumped ahead. It is
// the function of the same name in lua/clock.lua.
func jumped(packed string, canary bool, r reading, now time.Time) bool {
	if packed == "" {
		return false
	}
	e := unpackEvidence(packed)
	byWall := e.highest.Add(r.wall.Round(0).Sub(e.wall))
	if tripped(packed, canary, now) && !byWall.After(now.Add(maxStep)) {
		return true
	}
	ahead := func(of time.Time) bool { return now.After(of.Add(maxStep)) }
	return ahead(e.highest) && ahead(byWall) && ahead(r.expected())
}

// tripped reports whether the canary has expired although its time has not come.
func tripped(packed string, canary bool, now time.Time) bool {
	return !canary && now.Before(unpackEvidence(packed).canary.Add(-maxStep))
}

// newClocks returns the clocks for a store.
func newClocks(c config, client goredis.UniversalClient) *clocks {
	_, cluster := client.(*goredis.ClusterClient)
	return &clocks{wall: c.wall, lease: c.lease, single: !cluster, changed: func(ctx context.Context, change ClockChange) {
		if change.Kind == ServerJumped {
			c.log.ErrorContext(ctx, "tokenstore/redis: the clock of Redis jumped ahead, so keys may be forgotten; new keys are refused until the loss is accepted", "by", change.By)
		} else {
			c.log.WarnContext(ctx, "tokenstore/redis: "+change.Kind.String(), "by", change.By)
		}
		if c.clockChanged != nil {
			c.clockChanged(ctx, change)
		}
	}}
}
