package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// With --demo the process is a pair. The parent binds the ports and starts an instance on them.
// When a charge crashes the instance, the parent starts another one. Meanwhile the ports stay open,
// and new connections wait for the next instance.

// inheritedEnv tells an instance that its parent has bound the ports.
const inheritedEnv = "PAYMENTS_DEMO_INHERITED"

// Files of the bound ports in an instance, after standard input, output and error.
const (
	httpFile = 3
	grpcFile = 4
)

// crash ends this process at once, as a power cut does.
func crash() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // until the kill arrives
}

// supervise runs instances until one of them ends by itself, or ctx ends. It returns the exit
// code of the last one.
func supervise(ctx context.Context, cfg Config, args []string, getenv func(string) string, stdout, stderr io.Writer) (code int, err error) {
	switch {
	case runtime.GOOS == "windows":
		return 1, errors.New("--demo: this system cannot hand ports to another process")
	case cfg.TokenStore == storeMemory:
		return 1, errors.New("--demo: records in memory do not survive a crash; leave --token-store memory out")
	}
	env := append(os.Environ(), inheritedEnv+"=1")
	if cfg.Database == "" {
		dir, err := os.MkdirTemp("", "payments-demo")
		if err != nil {
			return 1, fmt.Errorf("--demo: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		env = append(env, envPrefix+"DATABASE=sqlite:"+filepath.Join(dir, "payments.db"))
		if cfg.local() && getenv(envName("operators")) == "" {
			env = append(env, envName("operators")+"="+localOperators)
		}
	}
	var ports []*os.File
	defer func() {
		for _, f := range ports {
			_ = f.Close()
		}
	}()
	for _, port := range []struct{ flag, addr string }{{"http-addr", cfg.HTTPAddr}, {"grpc-addr", cfg.GRPCAddr}} {
		f, err := bind(ctx, port.addr)
		if err != nil {
			return 1, bindError(port.flag, err)
		}
		ports = append(ports, f)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("--demo: %w", err)
	}
	for {
		cmd := exec.CommandContext(ctx, self, args...) //nolint:gosec // this program with its own arguments
		alive, err := cmd.StdinPipe()                  // an instance stops when its parent closes this, or dies
		if err != nil {
			return 1, fmt.Errorf("--demo: %w", err)
		}
		cmd.Cancel = alive.Close
		cmd.WaitDelay = gracePeriod + lastMoment + closeTimeout + time.Second
		cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = env, stdout, stderr, ports
		err = cmd.Run()
		ended, ran := errors.AsType[*exec.ExitError](err)
		switch {
		case err == nil, ctx.Err() != nil && cmd.ProcessState != nil && cmd.ProcessState.Success():
			return 0, nil
		case !ran:
			return 1, fmt.Errorf("--demo: %w", err)
		case ended.Exited() || ctx.Err() != nil:
			return max(ended.ExitCode(), 1), nil
		}
		fmt.Fprintln(stderr, "example-payments: the instance has crashed, and another one takes over")
		stdout = io.Discard // there is one ready line
	}
}

// whileParentLives returns a context that ends with the parent of a demo.
func whileParentLives(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// bind opens a port, to be handed to instances.
func bind(ctx context.Context, addr string) (*os.File, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the file keeps the port
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%T is not TCP", l)
	}
	return tcp.File()
}

// inherit takes over the ports that a parent has bound.
func (a *App) inherit() (err error) {
	for fd, to := range map[uintptr]*net.Listener{httpFile: &a.onHTTP, grpcFile: &a.onGRPC} {
		f := os.NewFile(fd, "port")
		if *to, err = net.FileListener(f); err != nil {
			return fmt.Errorf("--demo: %w", err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("--demo: %w", err)
		}
	}
	return nil
}
