package main

import (
	"cmp"
	"math"
	"slices"
)

// comparison is one figure that has a goal:
//
//	(Case − Base) / (Peer − PeerBase) × Scale
//
// A Base without a name is 0, and a Peer without a name is 1. Case and Peer alone
// are a ratio. Case and Base are a difference. All four are the ratio of two added
// costs.
type comparison struct {
	name           string // of the RATIO line
	unit           string // "sec/op", "cpu-sec/op", "requests/op", …: tidied, see benchunit.Tidy
	kase, base     string // benchmarks, without the word in front and the number of CPUs
	peer, peerBase string
	scale          float64 // 0 is 1
	bound          bound
	goal           float64

	// calm, if not "", is a unit of Case with the speed of the machine. Only the
	// third of the rounds with its lowest figures counts for the value. It is for
	// differences of microseconds, because a disturbed machine doubles them.
	calm string
}

type bound int

const (
	atMost bound = iota
	atLeast
)

const micro = 1e6 // seconds to microseconds

// comparisons is the table to add to.
var comparisons = []comparison{
	// The added cost of a unary call, with the client: over a pipe in memory, with
	// the least spread, and over TCP. The goal is a requirement.
	{name: "grpc-unary-fresh-added-us", unit: "fresh-added-sec/op", kase: "GRPC/bufconn/in-turns", scale: micro, goal: 15, calm: "base-sec/op"},
	{name: "grpc-tcp-fresh-added-us", unit: "fresh-added-sec/op", kase: "GRPC/tcp/in-turns", scale: micro, goal: 15, calm: "base-sec/op"},
	// A replay takes no lock and writes nothing, so it may not cost more.
	{name: "grpc-unary-replay-added-us", unit: "replay-added-sec/op", kase: "GRPC/bufconn/in-turns", scale: micro, goal: 15, calm: "base-sec/op"},

	// A goal of 1 means no dearer than the peer. Most peers do less, and the
	// benchmarks say what is missing.
	{name: "gin-fresh-added-vs-fiber", unit: "cpu-sec/op", kase: "HTTP/gin/fresh", base: "HTTP/gin/bare", peer: "HTTP/fiber/fresh", peerBase: "HTTP/fiber/bare", goal: 1},
	{name: "gin-replay-added-vs-fiber", unit: "cpu-sec/op", kase: "HTTP/gin/replay", base: "HTTP/gin/bare", peer: "HTTP/fiber/replay", peerBase: "HTTP/fiber/bare", goal: 1},

	{name: "zookeeper-lock-1-time-vs-go-zookeeper", unit: "sec/op", kase: "Lock/idemkeeper/callers=1", peer: "Lock/go-zookeeper/callers=1", goal: 1},
	{name: "zookeeper-lock-64-time-vs-go-zookeeper", unit: "sec/op", kase: "Lock/idemkeeper/callers=64", peer: "Lock/go-zookeeper/callers=64", goal: 1},

	// The peer's time divided by ours is our rate divided by the peer's.
	{name: "zookeeper-lock-64-rate-vs-curator", unit: "sec/op", kase: "Lock/curator/callers=64", peer: "Lock/idemkeeper/callers=64", bound: atLeast, goal: 12},
	{name: "zookeeper-mutex-64-rate-vs-curator", unit: "sec/op", kase: "Mutex/curator/waiters=64", peer: "Mutex/idemkeeper/waiters=64", bound: atLeast, goal: 2},
	{name: "zookeeper-mutex-64-rate-vs-go-zookeeper", unit: "sec/op", kase: "Mutex/go-zookeeper/waiters=64", peer: "Mutex/idemkeeper/waiters=64", bound: atLeast, goal: 1},

	// A hand-over costs one delete, one notification and one read for any number
	// of waiters.
	{name: "zookeeper-handover-1000-requests", unit: "requests/op", kase: "HandOver/waiters=1000", goal: 3},
	{name: "zookeeper-handover-requests-1000-vs-10", unit: "requests/op", kase: "HandOver/waiters=1000", peer: "HandOver/waiters=10", goal: 1},
	{name: "zookeeper-handover-requests-100-vs-10", unit: "requests/op", kase: "HandOver/waiters=100", peer: "HandOver/waiters=10", goal: 1},

	// Payments with and without the record take turns within a round.
	{name: "joined-16-time-vs-alone", unit: "joined-by-alone", kase: "Joined/fresh", goal: 1.4},

	{name: "execution-1-time-vs-zookeeper-flow", unit: "sec/op", kase: "Execution/idemkeeper/callers=1", peer: "Execution/zookeeper-flow/callers=1", goal: 1},
	{name: "execution-64-time-vs-zookeeper-flow", unit: "sec/op", kase: "Execution/idemkeeper/callers=64", peer: "Execution/zookeeper-flow/callers=64", goal: 1},
}

// missing returns the cases of the comparison that were not run.
func (c comparison) missing(s samples) (names []string) {
	for _, name := range []string{c.kase, c.base, c.peer, c.peerBase} {
		if name != "" && len(s[name][c.unit]) == 0 {
			names = append(names, name)
		}
	}
	return names
}

// typical is the value of the comparison, from the medians of the rounds that
// count.
func (c comparison) typical(s samples) float64 {
	if c.calm == "" {
		return c.value(s, median)
	}
	speed := s[c.kase][c.calm]
	rounds := make([]int, len(speed))
	for i := range rounds {
		rounds[i] = i
	}
	slices.SortFunc(rounds, func(i, j int) int { return cmp.Compare(speed[i], speed[j]) })
	rounds = rounds[:(len(rounds)+2)/3]
	return c.value(s, func(figures []float64) float64 {
		var calm []float64
		for _, i := range rounds {
			calm = append(calm, figures[i])
		}
		return median(calm)
	})
}

// value is the figure of the comparison. The function of picks a figure from the
// rounds of a case, such as their median or a single round. The value is NaN if a
// case seems to cost less than its base. A short run on a busy machine gives that.
func (c comparison) value(s samples, of func(rounds []float64) float64) float64 {
	figure := func(name string) float64 {
		if name == "" {
			return 0
		}
		return of(s[name][c.unit])
	}
	v := figure(c.kase) - figure(c.base)
	if c.peer != "" {
		v /= max(0, figure(c.peer)-figure(c.peerBase))
	}
	if v < 0 || math.IsInf(v, 0) {
		return math.NaN()
	}
	if c.scale != 0 {
		v *= c.scale
	}
	return v
}

// bounds are the least and the greatest value of a single round, without rounds
// lost in noise. They show how reliable the value is.
func (c comparison) bounds(s samples) (least, most float64) {
	var values []float64
	for i := range s[c.kase][c.unit] {
		v := c.value(s, func(rounds []float64) float64 { return rounds[i] })
		if !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return math.NaN(), math.NaN()
	}
	return slices.Min(values), slices.Max(values)
}

// verdict says whether the goal was met.
func (c comparison) verdict(v float64) string {
	switch {
	case math.IsNaN(v):
		return "lost in noise"
	case c.bound == atMost && v <= c.goal, c.bound == atLeast && v >= c.goal:
		return "met"
	default:
		return "missed"
	}
}
