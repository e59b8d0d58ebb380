package crashtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Run tests a subject, and fails the test for each case that fails. It logs the table of all cases.
func Run(t testing.TB, s Subject) {
	t.Helper()
	report := Find(t, s)
	t.Log(report.String())
	switch failed := report.Failures(); {
	case len(failed) > 0:
		t.Errorf("%d of %d cases failed", len(failed), len(report.Cases))
	case !report.tried() && os.Getenv(envCase) == "":
		t.Errorf("no fault was tried")
	}
}

// Find is [Run] that returns what it has found, and fails the test only if nothing could be tested.
func Find(tb testing.TB, s Subject) *Report {
	tb.Helper()
	report, err := find(tb, s)
	if err != nil {
		tb.Fatalf("crashtest: %v", err)
	}
	return report
}

func find(tb testing.TB, s Subject) (*Report, error) {
	tb.Helper()
	if s.Serve == nil || s.Request == nil || s.Effects == nil {
		return nil, errNoFunction
	}
	if InService() {
		serve(tb, s)
	}
	r := &runner{Subject: s.withDefaults(runtime.GOMAXPROCS(0)), tb: tb, only: os.Getenv(envCase)}
	if r.only != "" { // it may be of a full run
		r.Short, r.Faults = false, nil
	}
	ctx, cancel := context.WithCancelCause(tb.Context())
	defer cancel(errTestEnded)
	if s.Setup != nil {
		r.settings = s.Setup(tb)
	}
	defer r.end()
	return r.run(ctx)
}

// runner runs the cases of one subject.
type runner struct {
	Subject
	tb       testing.TB
	only     string // the case to run, or "" for all
	settings map[string]string

	mu sync.Mutex
	up *instance // the healthy process, to which repeats go
}

func (r *runner) run(ctx context.Context) (*Report, error) {
	started := time.Now()
	runs := 3
	if r.Short {
		runs = 2
	}
	points, unstable, err := r.discover(ctx, runs)
	if err != nil {
		return nil, err
	}
	if r.only != "" { // it may be a point of some runs alone
		points, unstable = append(points, unstable...), nil
	}
	report := &Report{Test: r.tb.Name(), Points: points, Unstable: unstable}
	report.Cases = append(report.Cases, &Case{Fault: Repeated})
	for _, p := range points {
		for _, f := range r.at(p) {
			report.Cases = append(report.Cases, r.cases(p, f)...)
		}
	}
	if r.only != "" {
		report.Cases = slices.DeleteFunc(report.Cases, func(c *Case) bool { return c.id() != r.only })
		if len(report.Cases) == 0 {
			return nil, fmt.Errorf("there is no case %q, and the points are %v", r.only, points)
		}
	}
	if c := report.Cases[0]; c.Fault == Repeated {
		if r.repeat(ctx, c); c.Result == Failed {
			report.Cases = report.Cases[:1]
			return report, ctx.Err()
		}
	}
	r.tb.Logf("crashtest: %d points, %d cases", len(points), len(report.Cases))
	r.runAll(ctx, report)
	report.Took = time.Since(started)
	return report, ctx.Err()
}

// cases are a fault at a point, once for each server if servers are restarted.
func (r *runner) cases(p PointInfo, f Fault) (all []*Case) {
	if why := r.leftOut(f); why != "" {
		return []*Case{{Point: p, Fault: f, Result: LeftOut, Cell: string(LeftOut), Why: why}}
	}
	if f != Restarted {
		return []*Case{{Point: p, Fault: f}}
	}
	for _, server := range sortedKeys(r.Restart) {
		all = append(all, &Case{Point: p, Fault: f, Server: server})
	}
	return all
}

// runAll runs cases at once, and those that restart a server one after the other at the end.
func (r *runner) runAll(ctx context.Context, report *Report) {
	var alone, together []*Case
	for _, c := range report.Cases {
		switch {
		case c.Result != "":
		case c.Fault == Restarted:
			alone = append(alone, c)
		default:
			together = append(together, c)
		}
	}
	var mu sync.Mutex
	done, failed := 0, 0
	started, told := time.Now(), time.Now()
	one := func(c *Case) {
		r.try(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		done++
		if c.Result == Failed {
			failed++
			r.tb.Logf("crashtest: FAILED %s: %s", c.where(), c.Why)
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			r.tb.Logf("crashtest: %d of %d cases, %d failed, %v", done, len(alone)+len(together), failed, time.Since(started).Round(time.Second))
		}
	}
	next := make(chan *Case)
	var workers sync.WaitGroup
	for range min(r.Parallel, len(together)) {
		workers.Go(func() {
			for c := range next {
				one(c)
			}
		})
	}
	for _, c := range together {
		next <- c
	}
	close(next)
	workers.Wait()
	for _, c := range alone {
		one(c)
	}
}

// start starts a process for one case.
func (r *runner) start(ctx context.Context) (*instance, error) {
	if r.OneInstance {
		r.end()
	}
	return startInstance(ctx, r.tb.Name(), r.Subject, r.settings)
}

// healthy is the process for repeats, a new one if it has ended. If it cannot start, requests go to otherwise.
func (r *runner) healthy(ctx context.Context, otherwise *instance) *instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up == nil || !r.up.running() {
		in, err := startInstance(ctx, r.tb.Name(), r.Subject, r.settings)
		if err != nil {
			return otherwise
		}
		r.up = in
	}
	return r.up
}

func (r *runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up != nil {
		r.up.kill()
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// command runs one case again. It works in any folder, and for a module outside of a workspace too.
func (r *Report) command(c *Case) string {
	dir, err := os.Getwd()
	if err != nil {
		dir = "."
	}
	var b strings.Builder
	for _, name := range []string{"GOWORK", "GOFLAGS"} {
		if v := os.Getenv(name); v != "" {
			fmt.Fprintf(&b, "%s=%s ", name, quote(v))
		}
	}
	fmt.Fprintf(&b, "%s=%s go test -C %s -count=1 -v -run %s .", envCase, quote(c.id()), quote(dir), quote(patternOf(r.Test)))
	return b.String()
}

// quote makes one word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
