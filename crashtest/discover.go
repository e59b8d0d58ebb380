package crashtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PointInfo is a point that a run has found.
type PointInfo struct {
	Number int
	Name   string
	Nth    int  // among the points of the same name, from 1
	Mark   bool // of [Point], so that there is no call to break
}

func (p PointInfo) String() string { return fmt.Sprintf("%d: %s", p.Number, p.named()) }

func (p PointInfo) named() string {
	if p.Nth > 1 {
		return fmt.Sprintf("%s (no. %d)", p.Name, p.Nth)
	}
	return p.Name
}

func (p PointInfo) same(other PointInfo) bool { return p.Name == other.Name && p.Nth == other.Nth }

// afterAnswer is how long points are collected after the answer, because a service may do something in the background.
const afterAnswer = 200 * time.Millisecond

// discover runs the request without a fault, each time in a new process, and returns the points that every run had, and
// the others.
func (r *runner) discover(ctx context.Context, runs int) (stable, unstable []PointInfo, err error) {
	var seen [][]PointInfo
	for range runs {
		points, err := r.record(ctx)
		if err != nil {
			return nil, nil, err
		}
		seen = append(seen, points)
	}
	for _, points := range seen {
		for _, p := range points {
			switch {
			case slices.ContainsFunc(slices.Concat(stable, unstable), p.same):
			case everyHas(seen, p):
				p.Number = len(stable) + 1
				stable = append(stable, p)
			default:
				unstable = append(unstable, p)
			}
		}
	}
	if len(stable) == 0 {
		return nil, nil, fmt.Errorf("the request passed no point that every run has: wrap the drivers of the service with its Env (other points: %v)", unstable)
	}
	return stable, unstable, nil
}

func everyHas(seen [][]PointInfo, p PointInfo) bool {
	for _, points := range seen {
		if !slices.ContainsFunc(points, p.same) {
			return false
		}
	}
	return true
}

// record sends one request to a new instance, wants a success with one effect, and returns the points.
func (r *runner) record(ctx context.Context) ([]PointInfo, error) {
	in, err := r.start(ctx)
	if err != nil {
		return nil, err
	}
	defer in.kill()
	h := r.newHistory()
	if counted, err := r.count(ctx, h.key); err != nil {
		return nil, err
	} else if counted.any(func(n int) bool { return n != 0 }) {
		return nil, fmt.Errorf("effects cannot be counted: %v for an operation that never ran. Effects has to count those of one key", counted)
	}
	if err := in.arm(ctx, target{}); err != nil {
		return nil, err
	}
	c := client{runner: r, history: h, name: "client", timeout: r.Budget, route: func(int) *instance { return in }}
	last := c.untilFinal(ctx)
	if last.Outcome != Success {
		return nil, fmt.Errorf("without any fault the request got no success within %v, and its last answer was %v\nthe service wrote: %s", r.Budget, last, in.output)
	}
	counted, err := r.countUntil(ctx, h.key, 1)
	if err != nil {
		return nil, err
	} else if counted.any(func(n int) bool { return n != 1 }) {
		return nil, fmt.Errorf("effects cannot be counted: %v after one request without a fault, which was answered %v", counted, last)
	}
	in.quiet(ctx, afterAnswer, 5*afterAnswer)
	var points []PointInfo
	for _, e := range in.all() {
		if e.Is == isBefore {
			points = append(points, PointInfo{Name: e.Name, Nth: e.Nth, Mark: e.Mark})
		}
	}
	return points, nil
}

// counts are numbers of effects, those of the ledger first.
type counts []effects

type effects struct {
	of string // "" for the ledger
	n  int
}

func (c counts) any(is func(n int) bool) bool {
	return slices.ContainsFunc(c, func(e effects) bool { return is(e.n) })
}

func (c counts) String() string {
	var b strings.Builder
	for i, e := range c {
		if i > 0 {
			b.WriteString(", ")
		}
		if e.of == "" {
			fmt.Fprintf(&b, "%d effects", e.n)
		} else {
			fmt.Fprintf(&b, "%d at %s", e.n, e.of)
		}
	}
	return b.String()
}

const countTimeout = 20 * time.Second

// count counts at each system.
func (r *runner) count(ctx context.Context, key string) (counts, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	n, err := r.Effects(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("effects cannot be counted: %w", err)
	}
	all := counts{{"", n}}
	for _, of := range sortedKeys(r.OtherEffects) {
		n, err := r.OtherEffects[of](ctx, key)
		if err != nil {
			return nil, fmt.Errorf("effects at %s cannot be counted: %w", of, err)
		}
		all = append(all, effects{of, n})
	}
	return all, nil
}

// countUntil counts until each system has want effects, or until a moment has passed, because a system may be slow, and a
// connection to it may be from before its restart.
func (r *runner) countUntil(ctx context.Context, key string, want int) (counts, error) {
	for end := time.Now().Add(2 * time.Second); ; {
		c, err := r.count(ctx, key)
		if err == nil && !c.any(func(n int) bool { return n < want }) || time.Now().After(end) {
			return c, err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
