package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// options are those of the command line.
type options struct {
	rounds    int
	bench     string
	benchtime string
	timeout   time.Duration
}

// everything is the pattern of all benchmarks.
const everything = "."

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often every case is measured")
	flag.StringVar(&o.bench, "bench", everything, "which benchmarks to run, as for go test")
	flag.StringVar(&o.benchtime, "benchtime", "1s", "how long a case runs in each round, as for go test")
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "how long a round may take")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	if o.rounds < 1 {
		return fmt.Errorf("%d rounds", o.rounds)
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("arguments %q are not understood", flag.Args())
	}
	s, err := measure(ctx, o, out)
	if err != nil {
		return err
	}
	return report(out, s, comparisons, o.bench == everything)
}

// measure builds the benchmarks of the current folder and runs them round by
// round.
func measure(ctx context.Context, o options, out io.Writer) (_ samples, err error) {
	dir, err := os.MkdirTemp("", "idemkeeper-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "bench.test")
	if output, err := command(ctx, "go", "test", "-c", "-o", binary, ".").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go test -c: %w\n%s", err, output)
	}

	s := make(samples)
	for round := range o.rounds {
		start := time.Now()
		cmd := command(ctx, binary, "-test.run=^$", "-test.bench="+o.bench, "-test.benchtime="+o.benchtime,
			"-test.count=1", "-test.benchmem", "-test.timeout="+o.timeout.String())
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("round %d: %w\n%s%s", round+1, err, stdout.Bytes(), stderr.Bytes())
		}
		if err := s.add(bytes.NewReader(stdout.Bytes())); err != nil {
			return nil, fmt.Errorf("round %d: %w\n%s", round+1, err, stdout.Bytes())
		}
		fmt.Fprintf(out, "round %d of %d took %v\n", round+1, o.rounds, time.Since(start).Round(time.Second))
	}
	fmt.Fprintln(out)
	return s, s.check(o.rounds)
}

// command makes a command that is interrupted when ctx ends, so that it can stop
// its servers.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the go command and its output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}
