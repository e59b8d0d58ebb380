// Command testsummary runs go test and counts the results in one last line:
//
//	testsummary [-quick] [-first packages] [-C dir]... [flags of go test] [packages]
//
// It prints a line for each package, shows the output of failing tests in
// full, and repeats their first messages at the end. The last line is
// "N passed, N failed". Tests and subtests count alike.
//
// go test handles the packages of one module. Each -C, before the flags of go
// test, names a directory with a module for the same go test. The first module, which is the
// largest, runs beside the others, which run one package after the other (-p=1). The last line
// counts all runs.
//
// go test begins with the packages in the order of its arguments. -first names packages of
// the first module, such as ./tests,./fence, that are put in front of the last argument, which
// is ./... in that case. They take longest, so nothing is left to wait for at the end.
//
// The following results look like success to go test and count as failed here:
// a skipped test, a test without an end, a package that did not build, and a
// failed package without a failing test (an exit from TestMain, a data race
// outside of tests). The exit status is 1 if anything failed or no test ran.
//
// With -quick, go test runs with -short, and a test skipped by testserver for
// want of a server counts as left out. Any other skip still counts as failed.
//
// A test whose server this machine cannot have, such as MySQL on Debian 12, counts as neither.
// A line "NOT RUN: N, reason" before the last one tells of such tests.
// Without -quick, -short is refused, so that a full run leaves out no test.
package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok := run(ctx, ".", os.Args[1:], os.Stdout)
	stop()
	if !ok {
		os.Exit(1)
	}
}

// run runs go test in dir, or in the directories below it that args begin with,
// and reports whether all went well. When ctx ends, run interrupts go test, which
// still reports the results so far.
func run(ctx context.Context, dir string, args []string, out io.Writer) bool {
	total := newSummary(&lockedWriter{out: out})
	if len(args) > 0 && args[0] == "-quick" {
		total.quick, args = true, args[1:]
	}
	first, args := firstOf(args)
	modules, args := modulesOf(args)
	if total.quick {
		args = append([]string{"-short"}, args...)
	} else if i := slices.IndexFunc(args, setsShort); i >= 0 {
		total.failed++
		total.problem("FAIL: " + args[i] + " would leave tests out of a full run; use -quick")
		modules = nil
	}
	if len(modules) > 0 {
		others := newSummary(total.out)
		others.quick = total.quick
		var beside sync.WaitGroup
		beside.Go(func() {
			for _, m := range modules[1:] {
				others.goTest(ctx, filepath.Join(dir, m), beforeLast(args, "-p=1"))
			}
		})
		total.goTest(ctx, filepath.Join(dir, modules[0]), beforeLast(args, first...))
		beside.Wait()
		total.join(others)
	}
	total.finish()
	return total.ok()
}

// beforeLast puts flags or packages in front of the last argument.
func beforeLast(args []string, more ...string) []string {
	if len(args) == 0 {
		return args
	}
	all := len(args) - 1
	return slices.Concat(args[:all], more, args[all:])
}

// firstOf takes a leading -first flag off the arguments.
func firstOf(args []string) (packages, rest []string) {
	if len(args) >= 2 && args[0] == "-first" {
		return strings.Split(args[1], ","), args[2:]
	}
	return nil, args
}

// setsShort reports whether an argument is go test's -short in any spelling.
func setsShort(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return strings.HasPrefix(arg, "-") && (name == "short" || name == "test.short")
}

// modulesOf takes the leading -C flags off the arguments of go test.
func modulesOf(args []string) (dirs, rest []string) {
	for len(args) >= 2 && args[0] == "-C" {
		dirs, args = append(dirs, args[1]), args[2:]
	}
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	return dirs, args
}

// goTest runs one go test and counts its results.
func (s *summary) goTest(ctx context.Context, dir string, args []string) {
	events, w := io.Pipe()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = w, w

	exited := make(chan error, 1)
	go func() {
		err := cmd.Run()
		exited <- err
		_ = w.Close()
	}()

	failedBefore := s.failed
	s.read(events)
	s.endRun(<-exited, s.failed-failedBefore)
}
