// Command testsummary runs go test and says in one last line how it went:
//
//	testsummary [-C dir]... [flags of go test] [packages]
//
// It streams a line for each package, shows the output of failing tests in
// full, and ends with "N passed, N failed". Tests and subtests count alike.
//
// go test knows the packages of one module. Each -C, before all other
// arguments, names a directory to run the same go test in, and so a further
// module; the one line at the end counts them all.
//
// What would otherwise look like success counts as failed: a skipped test (a
// skip would hide a missing server), a test that never ended, a package that
// did not build, or that failed without a failing test (an exit from TestMain,
// a data race outside of tests). The exit status is 1 when anything failed and
// when no test ran.
package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
// and reports whether all went well. When ctx ends it interrupts go test, which
// still reports what it knows.
func run(ctx context.Context, dir string, args []string, out io.Writer) bool {
	modules, args := modulesOf(args)
	s := newSummary(out)
	for _, m := range modules {
		s.goTest(ctx, filepath.Join(dir, m), args)
	}
	s.finish()
	return s.ok()
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

// goTest runs one go test and takes in what it tells.
func (s *summary) goTest(ctx context.Context, dir string, args []string) {
	events, w := io.Pipe()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...) //nolint:gosec // the caller's own flags
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
