package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNothing = 75 // EX_TEMPFAIL: not acquired, nothing there, or timed out
)

func main() {
	signals, stop := heard(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		stop() // a second signal kills, unless a command runs that gets it
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// usageError is an error of whoever typed the command.
type usageError struct{ error }

func wrongUse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isWrongUse reports whether an error is of whoever typed the command.
func isWrongUse(err error) bool {
	_, wrong := errors.AsType[usageError](err)
	return wrong
}

// errNothing says that what was asked for is not there.
var errNothing = errors.New("nothing there")

// run is the whole program but for the process around it. It returns the exit
// code, and writes one line to stderr where that is not 0, unless a command that
// it has run gave it.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	ended, ofCommand := errors.AsType[commandError](err)
	if ofCommand && ended.err == nil {
		return ended.code
	}
	fmt.Fprintln(stderr, "idemctl: "+oneLine(strings.Join(strings.Fields(err.Error()), " ")))
	switch {
	case isWrongUse(err), !a.started: // before a command of ours starts, errors are of package cobra
		return exitUsage
	case ofCommand:
		return ended.code
	case errors.Is(err, errNothing), errors.Is(err, errNotAcquired):
		return exitNothing
	}
	return exitFailed
}
