package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
)

const (
	// gracePeriod is how long running requests may take after SIGTERM.
	gracePeriod = 30 * time.Second
	// lastMoment is how long they may take after their connections were cut off.
	lastMoment = 2 * time.Second
	// closeTimeout bounds the end of a lock service.
	closeTimeout = 3 * time.Second
)

// listen binds both ports, or neither.
func (a *App) listen(ctx context.Context) (err error) {
	if a.cfg.Inherited {
		return a.inherit()
	}
	if a.onHTTP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.HTTPAddr); err != nil {
		return bindError("http-addr", err)
	}
	if a.onGRPC, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.GRPCAddr); err != nil {
		return errors.Join(bindError("grpc-addr", err), a.onHTTP.Close())
	}
	return nil
}

// bindError says which flag has the address that could not be bound, and helps if the port is taken.
func bindError(flag string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--%s: %w (another instance may be running; --%s 127.0.0.1:0 takes any free port)", flag, err, flag)
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// Addr is the address of HTTP.
func (a *App) Addr() string { return a.onHTTP.Addr().String() }

// GRPCAddr is the address of gRPC.
func (a *App) GRPCAddr() string { return a.onGRPC.Addr().String() }

// Serve writes the ready line and serves until ctx ends. Then it stops accepting,
// finishes the running requests and closes everything. Any other end is an error.
func (a *App) Serve(ctx context.Context, ready io.Writer) error {
	served := make(chan error, 2)
	go func() { served <- fmt.Errorf("http: %w", a.http.Serve(server.LimitWrites(a.onHTTP))) }()
	go func() { served <- fmt.Errorf("grpc: %w", a.grpc.Serve(a.onGRPC)) }()
	if _, err := fmt.Fprintf(ready, "ready http=%s grpc=%s\n", a.Addr(), a.GRPCAddr()); err != nil {
		a.log.Warn("cannot write the ready line", "err", err)
	}
	sweeping, stopSweeping := context.WithCancel(context.WithoutCancel(ctx))
	swept := make(chan struct{})
	go func() { defer close(swept); a.sweeper.Run(sweeping) }()
	a.log.Info("serving", "http", a.Addr(), "grpc", a.GRPCAddr(), "lock", a.lockName, "store", a.cfg.TokenStore)
	if a.engine.Joined() && a.cfg.Resolver == resolverNone {
		a.log.Info("a crash rolls a payment back together with its record, so it leaves no outcome in doubt for --resolver none; --redis does, or --token-store memory without --demo")
	}
	var failed error
	select {
	case <-ctx.Done():
		a.log.Info("stopping")
	case failed = <-served:
	case <-a.ledger.Lost():
		// Another instance may have claimed the ledger already, so stop at once.
		stopSweeping()
		go a.grpc.Close() // it may wait for clients
		return errors.Join(errors.New("the claim of the ledger was lost"), a.http.Close())
	}
	stopSweeping()
	return errors.Join(failed, a.stop(context.WithoutCancel(ctx), swept))
}

// stop ends the service in an order that keeps the locks until no handler runs. If a
// handler does not end in time, its lock is not given back. The lock then outlives
// this process by the session time-out, so that no other handler starts beside it.
func (a *App) stop(ctx context.Context, swept <-chan struct{}) error {
	grace, cancel := context.WithTimeout(ctx, a.grace)
	defer cancel()
	if err := a.shutdown(grace); err != nil {
		// A connection is busy, perhaps only with a slow client. The engine knows
		// the running handlers, so it gets a last moment.
		a.log.Warn("cutting connections off", "err", err)
		_ = a.http.Close()
		a.grpc.Close()
		grace, cancel = context.WithTimeout(ctx, lastMoment)
		defer cancel()
	}
	select {
	case <-swept:
	case <-grace.Done():
	}
	if a.console != nil {
		if err := a.console.Close(grace); err != nil {
			a.log.Warn("a run of an operator has not ended", "err", err)
		}
	}
	if err := a.engine.Close(grace); err != nil {
		return fmt.Errorf("given up waiting for handlers, whose locks will time out: %w", err)
	}
	if err := a.disconnect(); err != nil {
		// All handlers have ended and all outcomes are stored. Open locks time out.
		a.log.Warn("not everything was closed in order", "err", err)
	}
	return nil
}

// shutdown stops accepting on both ports and waits for running requests.
func (a *App) shutdown(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- a.grpc.Shutdown(ctx) }()
	return errors.Join(a.http.Shutdown(ctx), <-done)
}

// closing bounds the end of a lock service.
func closing(end func(context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return end(ctx)
	}
}

// disconnect closes everything in the reverse order of opening.
func (a *App) disconnect() error {
	var errs []error
	for _, c := range slices.Backward(a.closers) {
		errs = append(errs, c())
	}
	a.closers = nil
	return errors.Join(errs...)
}
