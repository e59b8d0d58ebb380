package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/tools/tree"
)

// What a change comes to.
const (
	passed    = "survived"
	noticed   = "noticed"
	late      = "late"
	unreached = "unreached"
)

// run does what the command line says, in a copy of the tree.
func run(ctx context.Context, w io.Writer, o options) error {
	dir, err := os.MkdirTemp("", "changes")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { // a database of the tests has a user of its own
		return err
	}
	root := filepath.Join(dir, "tree")
	if err := tree.Copy(root, o.root); err != nil {
		return err
	}
	src, err := load(ctx, root, o.pkg)
	if err != nil {
		return err
	}
	all, err := src.rewrite()
	if err != nil {
		return err
	}
	chosen, err := choose(all, o)
	if err != nil {
		return err
	}
	var tests []*test
	var linked []string
	for i, pkg := range o.tests {
		more, links, err := build(ctx, root, pkg, o.names, filepath.Join(dir, strconv.Itoa(i)+".test"))
		if err != nil {
			return err
		}
		tests, linked = append(tests, more...), append(linked, links...)
	}
	if len(tests) == 0 {
		return fmt.Errorf("no tests in %q that match %q", o.tests, o.names)
	}
	pool := make([]*worker, 2)
	for i := range pool {
		pool[i] = &worker{host: &host{dir: filepath.Join(dir, strconv.Itoa(i))}, options: o, linked: linked}
		if err := os.Mkdir(pool[i].dir, 0o755); err != nil {
			return err
		}
		defer pool[i].stop()
	}
	if tests, err = soundRuns(ctx, pool, tests); err != nil {
		return err
	}
	verdicts, err := tryAll(ctx, pool, chosen, tests)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for i, v := range verdicts {
		if count[v]++; o.list && (v == passed || v == unreached) {
			fmt.Fprintf(w, "%s  %s\n", v, chosen[i])
		}
	}
	fmt.Fprintf(w, "FIGURE changes %s made %d noticed %d late %d survived %d unreached %d\n",
		o.pkg, len(chosen), count[noticed]+count[late], count[late], count[passed], count[unreached])
	return nil
}

// choose takes the changes that the command line asks for.
func choose(all []change, o options) (chosen []change, err error) {
	var list []byte
	if o.again != "" {
		if list, err = os.ReadFile(o.again); err != nil {
			return nil, err
		}
	}
	named := 0
	for _, c := range all {
		if !strings.Contains(c.String(), o.only) || o.again != "" && !bytes.Contains(list, []byte("  "+c.String()+"\n")) {
			continue
		}
		if named++; (named-1)%o.of == o.part%o.of {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// soundRuns returns the tests that pass without a change.
func soundRuns(ctx context.Context, pool []*worker, tests []*test) (good []*test, err error) {
	start := time.Now()
	ok := make([]bool, len(tests))
	err = each(ctx, pool, len(tests), func(ctx context.Context, w *worker, i int) error {
		var out []byte
		var err error
		if ok[i], out, err = w.sound(ctx, tests[i]); err == nil && !ok[i] {
			fmt.Fprintf(os.Stderr, "left out, because it does not pass by itself: %s %s\n%s\n", tests[i].pkg, tests[i].name, tail(out))
		}
		return err
	})
	for i, t := range tests {
		if ok[i] {
			good = append(good, t)
		}
	}
	fmt.Fprintf(os.Stderr, "%d tests ran by themselves in %v\n", len(good), time.Since(start).Round(time.Second))
	return good, err
}

// controlEvery is how many changes are tried before the tests run without one.
const controlEvery = 50

// tryAll returns the verdict of each change.
func tryAll(ctx context.Context, pool []*worker, chosen []change, tests []*test) (verdicts []string, err error) {
	verdicts = make([]string, len(chosen))
	var done atomic.Int32
	start := time.Now()
	err = each(ctx, pool, len(chosen), func(ctx context.Context, w *worker, i int) error {
		reach := within(tests, chosen[i].number, w.budget)
		if verdicts[i] = unreached; len(reach) > 0 {
			var err error
			if verdicts[i], _, err = w.try(ctx, chosen[i].number, reach); err != nil {
				return err
			}
		}
		if n := done.Add(1); n%controlEvery == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d changes in %v\n", n, len(chosen), time.Since(start).Round(time.Second))
			if len(reach) > 0 {
				return w.control(ctx, reach)
			}
		}
		return nil
	})
	return verdicts, err
}

// within returns the tests that pass a switch, the fastest first. If a budget is given and they
// take longer, the tests that pass the most switches are left out, because they are about
// everything. One test stays in any case.
func within(tests []*test, number int, budget time.Duration) (chosen []*test) {
	var all []*test
	for _, t := range tests {
		if t.needs[number] {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b *test) int { return len(a.needs) - len(b.needs) })
	var sum time.Duration
	for _, t := range all {
		if budget == 0 || sum == 0 || sum+t.took <= budget {
			chosen, sum = append(chosen, t), sum+t.took
		}
	}
	slices.SortFunc(chosen, func(a, b *test) int { return int(a.took - b.took) })
	return chosen
}

// try runs tests with a change. Without one, number is 0.
func (w *worker) try(ctx context.Context, number int, tests []*test) (verdict string, out []byte, err error) {
	for _, group := range batches(tests) {
		limit := w.grace
		for _, t := range group {
			limit += 3 * t.took
		}
		if verdict, out, err = w.run(ctx, group, limit, onVariable+"="+strconv.Itoa(number)); verdict != passed {
			return verdict, out, err
		}
	}
	return passed, nil, nil
}

// control runs tests without a change. Twice in a row they have to fail before it is an error.
func (w *worker) control(ctx context.Context, tests []*test) error {
	for range 2 {
		verdict, out, err := w.try(ctx, 0, tests)
		if err != nil || verdict == passed {
			return err
		}
		fmt.Fprintf(os.Stderr, "without a change, the tests are %s:\n%s\n", verdict, tail(out))
	}
	return errors.New("the tests do not pass without a change")
}

// each calls do for each number below n, at one worker each. A goroutine keeps its thread, because
// the kernel kills a child together with the thread that started it.
func each(ctx context.Context, pool []*worker, n int, do func(ctx context.Context, w *worker, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int32
	var all sync.WaitGroup
	for _, w := range pool {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, w, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// tail is the end of an output.
func tail(out []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
