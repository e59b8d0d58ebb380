package load

import (
	"fmt"
	"slices"
	"time"
)

// network says on which network a goal holds.
type network int

const (
	either network = iota
	loopback
	delayed // by 1 ms in each direction
)

func (n network) is(delay time.Duration) bool {
	return n == either || n == delayed == (delay > 0)
}

// goal is a figure with a bound. Its value is Of, divided by Peer if there is one.
type goal struct {
	name     string
	on       network
	of, peer measured
	atLeast  bool // or else at most
	value    float64
}

// measured returns the rounds of one figure, or nil if it was not measured.
type measured func(*Result) []float64

// figure picks a figure from the windows of a case.
func figure(name string, connections int, pick func(Window) float64) measured {
	return func(r *Result) (values []float64) {
		c := r.find(name, connections)
		if c == nil {
			return nil
		}
		for _, w := range c.Rounds {
			values = append(values, pick(w))
		}
		return values
	}
}

func rate(name string, connections int) measured {
	return figure(name, connections, func(w Window) float64 { return w.Rate })
}

func p50(name string, connections int) measured {
	return figure(name, connections, func(w Window) float64 { return w.P50 })
}

// trip is the time of one GET at one connection, over the network with the delay.
var trip = p50(get, 1)

func processor(name string, connections int) measured {
	return figure(name, connections, func(w Window) float64 { return w.Processor })
}

func redisProcessor(name string, connections int) measured {
	return figure(name, connections, func(w Window) float64 { return w.Redis })
}

func locksPerKey(name string, connections int) measured {
	return figure(name, connections, func(w Window) float64 { return w.LocksPerKey })
}

func recordWithoutBody(r *Result) []float64 {
	if r.Records == nil {
		return nil
	}
	return []float64{r.Records.Bytes - float64(r.Records.Body)}
}

// goals is the table to add to.
var goals = []goal{
	{name: "fresh-64-processor-us", on: loopback, of: processor(idemZooKeeper, 64), value: 80},
	{name: "fresh-64-redis-processor-us", on: loopback, of: redisProcessor(idemZooKeeper, 64), value: 20},
	{name: "fresh-64-rate-vs-redislock", on: loopback, of: rate(idemZooKeeper, 64), peer: rate(redisLock, 64), atLeast: true, value: 0.9},
	{name: "fresh-256-rate-vs-redislock", on: loopback, of: rate(idemZooKeeper, 256), peer: rate(redisLock, 256), atLeast: true, value: 1.2},
	{name: "fresh-64-rate-vs-plain", on: loopback, of: rate(idemZooKeeper, 64), peer: rate(plain, 64), atLeast: true, value: 1.7},
	{name: "fresh-256-rate-vs-plain", on: loopback, of: rate(idemZooKeeper, 256), peer: rate(plain, 256), atLeast: true, value: 2},
	{name: "fresh-ensemble-256-rate-vs-plain", on: loopback, of: rate(idemEnsemble, 256), peer: rate(plainEnsemble, 256), atLeast: true, value: 2},
	{name: "fresh-1-p50-vs-plain", on: loopback, of: p50(idemZooKeeper, 1), peer: p50(plain, 1), value: 1},
	{name: "redis-lock-64-rate-vs-redislock", on: loopback, of: rate(idemRedis, 64), peer: rate(redisLock, 64), atLeast: true, value: 0.9},
	{name: "redis-lock-64-processor-vs-redislock", on: loopback, of: processor(idemRedis, 64), peer: processor(redisLock, 64), value: 1},
	{name: "replay-64-rate-vs-get", on: loopback, of: rate(replay, 64), peer: rate(get, 64), atLeast: true, value: 0.8},
	{name: "replay-256-rate-vs-get", on: loopback, of: rate(replay, 256), peer: rate(get, 256), atLeast: true, value: 1.1},
	{name: "storm-rate-vs-replay", on: loopback, of: rate(stormCase, stormClients), peer: rate(replayStorm, stormClients), atLeast: true, value: 0.8},
	{name: "storm-locks-per-key", of: locksPerKey(stormCase, stormClients), value: 1},
	{name: "record-bytes-without-body", of: recordWithoutBody, value: 420},
	{name: "joined-16-rate-vs-business", on: loopback, of: rate(idemJoined, sqlConnections), peer: rate(alone, sqlConnections), atLeast: true, value: 0.71},
	{name: "full-store-64-rate-vs-empty", on: loopback, of: rate(idemZooKeeperFull, fullConnections), peer: rate(idemZooKeeper, fullConnections), atLeast: true, value: 0.9},

	{name: "zookeeper-64-processor-vs-plain", on: loopback, of: processor(idemZooKeeper, 64), peer: processor(plain, 64), value: 1},
	{name: "zookeeper-256-processor-vs-plain", on: loopback, of: processor(idemZooKeeper, 256), peer: processor(plain, 256), value: 0.8},
	{name: "joined-16-rate-vs-own", on: loopback, of: rate(idemJoined, sqlConnections), peer: rate(own, sqlConnections), atLeast: true, value: 0.75},
	{name: "joined-pgx-16-rate-vs-own", on: loopback, of: rate(idemPgx, sqlConnections), peer: rate(own, sqlConnections), atLeast: true, value: 0.75},

	{name: "redis-1-p50-in-trips", on: delayed, of: p50(idemRedis, 1), peer: trip, value: 2.2},
	{name: "redis-8-p50-in-trips", on: delayed, of: p50(idemRedis, 8), peer: trip, value: 2.7},
	{name: "redis-64-p50-in-trips", on: delayed, of: p50(idemRedis, 64), peer: trip, value: 3},
	{name: "redis-64-rate-vs-redislock", on: delayed, of: rate(idemRedis, 64), peer: rate(redisLock, 64), atLeast: true, value: 1.6},
	{name: "zookeeper-1-p50-vs-plain", on: delayed, of: p50(idemZooKeeper, 1), peer: p50(plain, 1), value: 1.05},
	{name: "zookeeper-8-p50-vs-plain", on: delayed, of: p50(idemZooKeeper, 8), peer: p50(plain, 8), value: 1.05},
	{name: "zookeeper-64-p50-vs-plain", on: delayed, of: p50(idemZooKeeper, 64), peer: p50(plain, 64), value: 1.05},
	{name: "zookeeper-1-rate-vs-plain", on: delayed, of: rate(idemZooKeeper, 1), peer: rate(plain, 1), atLeast: true, value: 0.95},
	{name: "zookeeper-8-rate-vs-plain", on: delayed, of: rate(idemZooKeeper, 8), peer: rate(plain, 8), atLeast: true, value: 0.95},
	{name: "zookeeper-64-rate-vs-plain", on: delayed, of: rate(idemZooKeeper, 64), peer: rate(plain, 64), atLeast: true, value: 0.95},
	{name: "replay-8-p50-in-trips", on: delayed, of: p50(replay, 8), peer: trip, value: 1.4},
	{name: "replay-64-p50-in-trips", on: delayed, of: p50(replay, 64), peer: trip, value: 1.4},
	{name: "joined-16-p50-vs-business", on: delayed, of: p50(idemJoined, sqlConnections), peer: p50(alone, sqlConnections), value: 1.12},
	{name: "joined-16-rate-vs-own", on: delayed, of: rate(idemJoined, sqlConnections), peer: rate(own, sqlConnections), atLeast: true, value: 1},
	{name: "joined-pgx-16-p50-vs-business", on: delayed, of: p50(idemPgx, sqlConnections), peer: p50(alonePgx, sqlConnections), value: 1.12},
	{name: "joined-pgx-16-rate-vs-own", on: delayed, of: rate(idemPgx, sqlConnections), peer: rate(own, sqlConnections), atLeast: true, value: 1},
	{name: "joined-mariadb-16-p50-vs-business", on: delayed, of: p50(idemMariaDB, sqlConnections), peer: p50(aloneMariaDB, sqlConnections), value: 1.5},
}

// GoalResult is a goal of which everything was measured.
type GoalResult struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"` // from the medians
	Least   float64 `json:"least"` // of a single round
	Most    float64 `json:"most"`
	AtLeast bool    `json:"at_least"`
	Goal    float64 `json:"goal"`
	Met     bool    `json:"met"`
}

func judge(r *Result) (results []GoalResult) {
	for _, g := range goals {
		if !g.on.is(r.Settings.Delay) {
			continue
		}
		if result, ok := g.judge(r); ok {
			results = append(results, result)
		}
	}
	return results
}

func (g goal) judge(r *Result) (GoalResult, bool) {
	of, peer := g.of(r), []float64{1}
	if g.peer != nil {
		peer = g.peer(r)
	}
	if len(of) == 0 || len(peer) == 0 {
		return GoalResult{}, false
	}
	var rounds []float64
	for i, v := range of {
		rounds = append(rounds, v/peer[min(i, len(peer)-1)])
	}
	v := median(of) / median(peer)
	return GoalResult{
		Name: g.name, Value: v, Least: slices.Min(rounds), Most: slices.Max(rounds),
		AtLeast: g.atLeast, Goal: g.value, Met: v == g.value || v > g.value == g.atLeast,
	}, true
}

func (g GoalResult) verdict() string {
	if g.Met {
		return "met"
	}
	return "missed"
}

func (g GoalResult) bound() string {
	if g.AtLeast {
		return fmt.Sprintf("≥ %g", g.Goal)
	}
	return fmt.Sprintf("≤ %g", g.Goal)
}
