// Command testsummary runs go test and says in one last line how it went:
//
//	testsummary [flags of go test] [packages]
//
// It streams a line for each package, shows the output of failing tests in
// full, and ends with "N passed, N failed". Tests and subtests count alike.
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

// run runs go test in dir and reports whether all went well. When ctx ends it
// interrupts go test, which still reports what it knows.
func run(ctx context.Context, dir string, args []string, out io.Writer) bool {
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

	s := newSummary(out)
	s.read(events)
	s.finish(<-exited)
	return s.ok()
}
