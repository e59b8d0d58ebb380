package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

const (
	// startTimeout bounds Start, so that an unreachable server is told well
	// within the 15 s of the contract.
	startTimeout = 11 * time.Second
	// gracePeriod is how long running requests may take to finish once the
	// service was told to stop.
	gracePeriod = 30 * time.Second
	lastMoment  = 2 * time.Second
)

// App is the service, with everything it is connected to. [Start] makes it and
// [App.Serve] ends it.
type App struct {
	cfg Config
	log *slog.Logger

	unreadable atomic.Int64 // newer and corrupt records, as the sweeper last told; see logPass
	onHTTP     net.Listener
	onGRPC     net.Listener
	http       *http.Server
	grpc       *rpc.Server
	engine     *idem.Engine
	ledger     *ledger.Ledger
	backends   *backends
	sweeper    *sweeper.Sweeper
	grace      time.Duration
}

// Start connects everything and binds the ports; nothing is served yet. After
// an error nothing is left open.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (app *App, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	a := &App{cfg: cfg, log: log, grace: gracePeriod}
	defer func() {
		if err != nil {
			_ = a.disconnect() // what has gone wrong is told already
		}
	}()
	if a.backends, err = openBackends(ctx, cfg, log); err != nil {
		return nil, err
	}
	if a.ledger, err = openLedger(ctx, cfg, log); err != nil {
		return nil, err
	}
	metrics := server.NewMetrics(a.backends.store)
	if a.engine, err = idem.New(a.backends.locker, a.backends.store, idem.WithObserver(observer(metrics, log)),
		idem.WithMaxOpenPerScope(cfg.MaxOpen)); err != nil {
		return nil, err
	}
	metrics.WatchRunning(a.engine)
	if err := a.makeServers(metrics); err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// makeServers makes both servers, over one engine and so one space of keys.
func (a *App) makeServers(m *server.Metrics) error {
	service := &payments.Service{Ledger: a.ledger, Latency: a.cfg.ProcessorLatency, Log: a.log}
	var resolver idem.Resolver
	if a.cfg.Resolver == resolverLedger {
		resolver = payments.LedgerResolver(a.ledger, a.cfg.ledgerIsPrivate(), answer)
	}
	if err := a.makeSweeper(m, resolver); err != nil {
		return err
	}
	handler, err := server.New(server.Config{Engine: a.engine, Service: service, Ledger: a.ledger, Keys: a.cfg.APIKeys,
		Metrics: m, Log: a.log, Wait: a.cfg.Wait, Resolver: resolver})
	if err != nil {
		return err
	}
	a.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 << 20, // so that an absurd key is refused by the middleware, which says why
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
	a.grpc, err = rpc.New(rpc.Config{Engine: a.engine, Service: service, Ledger: a.ledger, Keys: a.cfg.APIKeys,
		Metrics: m, Log: a.log, Wait: a.cfg.Wait, Resolver: resolver})
	return err
}

// answer is a [payments.Answer]: that of the transport over which the payment
// was asked for.
func answer(route string, p payments.Payment) (idem.Response, error) {
	if rpc.Owns(route) {
		return rpc.Answer(p)
	}
	return server.Answer(p)
}

// listen binds both ports, or none.
func (a *App) listen(ctx context.Context) (err error) {
	if a.onHTTP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.HTTPAddr); err != nil {
		return fmt.Errorf("--http-addr: %w", err)
	}
	if a.onGRPC, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.GRPCAddr); err != nil {
		return errors.Join(fmt.Errorf("--grpc-addr: %w", err), a.onHTTP.Close())
	}
	return nil
}

// openLedger claims the ledger for this instance where its keys are in this
// process: another instance would not know them, and pay again.
func openLedger(ctx context.Context, cfg Config, log *slog.Logger) (*ledger.Ledger, error) {
	sharing := ledger.Shared
	if cfg.TokenStore == storeMemory {
		sharing = ledger.Exclusive
		if cfg.Database != "" {
			log.WarnContext(ctx, "keys are in this process and lost at exit, while the ledger stays: a retry after a restart pays again; use --redis")
		}
	}
	if cfg.ledgerIsPrivate() {
		log.WarnContext(ctx, "keys are shared with other instances, while the ledger is this one's own and lost at exit: what another instance did cannot be looked up, and stays unknown; use --database")
	}
	l, err := ledger.Open(ctx, cfg.Database, sharing)
	if errors.Is(err, ledger.ErrClaimed) {
		return nil, fmt.Errorf("--database: %w; instances that share it need --redis, all of them", err)
	}
	if err != nil {
		return nil, fmt.Errorf("--database: %w", err)
	}
	for _, m := range cfg.APIKeys.Merchants() {
		if err := l.AddMerchant(ctx, m); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// Addr is where HTTP is served.
func (a *App) Addr() string { return a.onHTTP.Addr().String() }

// GRPCAddr is where gRPC is served.
func (a *App) GRPCAddr() string { return a.onGRPC.Addr().String() }

// Serve says on ready that it serves, and does so until ctx ends. Then it
// stops accepting, finishes what runs, and gives everything back. An error
// says that it ended otherwise.
func (a *App) Serve(ctx context.Context, ready io.Writer) error {
	served := make(chan error, 2)
	go func() { served <- fmt.Errorf("http: %w", a.http.Serve(a.onHTTP)) }()
	go func() { served <- fmt.Errorf("grpc: %w", a.grpc.Serve(a.onGRPC)) }()
	if _, err := fmt.Fprintf(ready, "ready http=%s grpc=%s\n", a.Addr(), a.GRPCAddr()); err != nil {
		a.log.Warn("nobody reads standard output", "err", err)
	}
	sweeping, stopSweeping := context.WithCancel(context.WithoutCancel(ctx))
	swept := make(chan struct{})
	go func() { defer close(swept); a.sweeper.Run(sweeping) }()
	a.log.Info("serving", "http", a.Addr(), "grpc", a.GRPCAddr(), "lock", a.backends.lockName, "store", a.cfg.TokenStore)
	var failed error
	select {
	case <-ctx.Done():
		a.log.Info("stopping")
	case failed = <-served:
	case <-a.ledger.Lost():
		// Another instance may have the ledger already: be gone, at once.
		stopSweeping()
		go a.grpc.Close() // which may wait for clients
		return errors.Join(errors.New("the claim of the ledger was lost"), a.http.Close())
	}
	stopSweeping()
	return errors.Join(failed, a.stop(context.WithoutCancel(ctx), swept))
}

// stop ends in the order that keeps the locks until nothing runs any more.
// Where running handlers have to be given up, their locks are not given back:
// they then outlive this process by the session time-out,
// and nobody runs beside a handler that is not quite dead.
func (a *App) stop(ctx context.Context, swept <-chan struct{}) error {
	grace, cancel := context.WithTimeout(ctx, a.grace)
	defer cancel()
	if err := a.shutdown(grace); err != nil {
		// A connection is busy, perhaps only with a client that is slow. What
		// holds a lock is known to the engine, which is given a last moment.
		a.log.Warn("connections are cut off", "err", err)
		_ = a.http.Close()
		a.grpc.Close()
		grace, cancel = context.WithTimeout(ctx, lastMoment)
		defer cancel()
	}
	err := a.engine.Close(grace)
	if err == nil {
		select {
		case <-swept:
		case <-grace.Done():
			err = errors.New("the sweeper is still at work")
		}
	}
	if err != nil {
		a.backends.abandon()
		return fmt.Errorf("given up on what still runs; its locks are left to time out: %w", err)
	}
	if err := a.disconnect(); err != nil {
		// Nothing runs and all is stored; what was not given back times out.
		a.log.Warn("not everything was closed in order", "err", err)
	}
	return nil
}

// shutdown stops accepting on both ports and waits for what runs.
func (a *App) shutdown(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- a.grpc.Shutdown(ctx) }()
	return errors.Join(a.http.Shutdown(ctx), <-done)
}

// disconnect closes what was opened, the lock service last but for the ledger,
// whose claim outlives all that may write to it.
func (a *App) disconnect() error {
	var errs []error
	if a.backends != nil {
		errs = append(errs, a.backends.close())
	}
	if a.ledger != nil {
		errs = append(errs, a.ledger.Close())
	}
	return errors.Join(errs...)
}
