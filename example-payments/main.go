package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/idemkeeper/idemkeeper/observe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	if os.Getenv(inheritedEnv) != "" {
		ctx = whileParentLives(ctx)
	}
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run is the program without the process around it. A signal ends ctx. It returns
// the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	cfg, err := ParseConfig(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return complain(stderr, err)
	}
	if cfg.Demo && !cfg.Inherited {
		code, err := supervise(ctx, cfg, args, getenv, stdout, stderr)
		if err != nil {
			return complain(stderr, err)
		}
		return code
	}
	logged := &heldBack{to: stderr}
	limited := observe.NewLimitHandler(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: cfg.LogLevel}))
	defer limited.Flush()
	log := slog.New(limited)
	if cfg.LogLevel <= slog.LevelDebug {
		logged.release()
	}
	app, err := Start(ctx, cfg, log)
	if err != nil {
		return complain(stderr, err)
	}
	logged.release()
	if err := app.Serve(ctx, stdout); err != nil {
		return complain(stderr, err)
	}
	return 0
}

// complain writes the error as one line.
func complain(w io.Writer, err error) int {
	fmt.Fprintln(w, "example-payments: "+strings.Join(strings.Fields(err.Error()), " "))
	return 1
}
