package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// usageError is an error of whoever typed the command.
type usageError struct{ error }

func wrongUse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errNothing says that what was asked for is not there.
var errNothing = errors.New("nothing there")

// run is the whole program but for the process around it. It returns the exit
// code, and writes one line to stderr where that is not 0.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	a := &app{getenv: getenv, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(stderr, "idemctl: "+strings.Join(strings.Fields(err.Error()), " "))
	_, wrong := errors.AsType[usageError](err)
	switch {
	case wrong, !a.started: // before a command of ours starts, errors are of package cobra
		return exitUsage
	case errors.Is(err, errNothing):
		return exitNothing
	}
	return exitFailed
}
