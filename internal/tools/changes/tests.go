package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// binary is the test binary of a package.
type binary struct {
	pkg, file, dir string
}

// test is a top-level test.
type test struct {
	*binary
	name  string
	took  time.Duration // its sound run
	needs map[int]bool  // the changes whose switch it passes
}

// build compiles the tests of a package in the tree, and lists those whose names match, and what
// they link.
func build(ctx context.Context, root, pkg, names, file string) (tests []*test, linked []string, err error) {
	if _, err := command(ctx, root, "test", "-c", "-o", file, pkg); err != nil {
		return nil, nil, err
	}
	out, err := command(ctx, root, "list", "-deps", "-test", pkg)
	if err != nil {
		return nil, nil, err
	}
	if built, _ := filepath.Glob(file); len(built) == 0 {
		return nil, nil, nil // the package has no tests
	}
	b := &binary{pkg: pkg, file: file, dir: filepath.Join(root, pkg)}
	cmd := exec.CommandContext(ctx, file, "-test.list="+names)
	cmd.Dir = b.dir
	found, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list the tests of %s: %w", pkg, err)
	}
	for name := range strings.FieldsSeq(string(found)) {
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example") {
			tests = append(tests, &test{binary: b, name: name})
		}
	}
	return tests, strings.Fields(string(out)), nil
}

// worker runs one process at a time, with servers and a temporary directory of its own.
type worker struct {
	*host
	options
	linked []string // packages, of which some are clients of servers
	env    []string // the names of the servers
	runs   int
}

const runsOfServers = 100

// run runs tests of one binary. Its verdict is passed, failed or late.
func (w *worker) run(ctx context.Context, tests []*test, limit time.Duration, env ...string) (verdict string, out []byte, err error) {
	if w.runs++; !w.quick && w.runs%runsOfServers == 1 {
		w.stop()
		if w.env, err = w.start(w.linked); err != nil {
			return "", nil, err
		}
	}
	tmp := filepath.Join(w.dir, "tmp")
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return "", nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(timed, tests[0].file, "-test.run=^("+strings.Join(names, "|")+")$", "-test.failfast", "-test.parallel=6", "-test.short="+strconv.FormatBool(w.quick))
	cmd.Dir, cmd.Env = tests[0].dir, slices.Concat(os.Environ(), w.env, []string{"TMPDIR=" + tmp}, env)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	cmd.SysProcAttr = testserver.ChildAttr()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	failed := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", nil, ctx.Err()
	case timed.Err() != nil:
		return late, text.Bytes(), nil
	case failed != nil:
		return noticed, text.Bytes(), nil
	}
	return passed, nil, nil
}

const soundLimit = 3 * time.Minute

// sound runs a test without a change, notes what it passes, and tells whether it passes by itself.
func (w *worker) sound(ctx context.Context, t *test) (ok bool, out []byte, err error) {
	record := filepath.Join(w.dir, "record")
	for range 2 { // another process may have been in the way
		if err := os.WriteFile(record, nil, 0o600); err != nil {
			return false, nil, err
		}
		start := time.Now()
		verdict, text, err := w.run(ctx, []*test{t}, soundLimit, recordVariable+"="+record)
		if err != nil {
			return false, nil, err
		}
		if out = text; verdict == passed {
			t.took = time.Since(start)
			t.needs, err = numbers(record)
			return true, nil, err
		}
	}
	return false, out, nil
}

func numbers(file string) (map[int]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := map[int]bool{}
	for f := range strings.FieldsSeq(string(data)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		set[n] = true
	}
	return set, nil
}

// batches groups tests, which are sorted by their time, for processes. Each group takes twice as
// long as the one before, because a change is mostly noticed by the first, and a process costs time.
func batches(tests []*test) (groups [][]*test) {
	for most := time.Second; len(tests) > 0; most *= 2 {
		var sum time.Duration
		byBinary := map[*binary]int{}
		first := len(groups)
		for len(tests) > 0 && (sum == 0 || sum+tests[0].took <= most) {
			t := tests[0]
			tests, sum = tests[1:], sum+t.took
			at, ok := byBinary[t.binary]
			if !ok {
				at = len(groups) - first
				byBinary[t.binary] = at
				groups = append(groups, nil)
			}
			groups[first+at] = append(groups[first+at], t)
		}
	}
	return groups
}
