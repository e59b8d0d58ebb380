package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	idemtelemetry "github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

const (
	startTimeout = 11 * time.Second // for Start, well within the 15 s of the contract
	sqliteTurn   = 10 * time.Second // for a request to wait for the payments before it, because SQLite has one writer
)

// App is the service with its connections. [Start] makes it, and [App.Serve] ends
// it.
type App struct {
	cfg Config
	log *slog.Logger

	ledger    *ledger.Ledger
	books     payments.Ledger   // the ledger, as the handlers use it
	zookeeper *zookeeper.Client // nil without --zookeeper
	markers   *zookeeper.Locker // whose markers the sweeper removes, or nil
	lockName  string
	telemetry *telemetry.Telemetry
	engine    *idem.Engine
	policy    idem.Policy // of the sweeper
	sweeper   *sweeper.Sweeper
	console   *console.Console // nil without operators
	timeline  *server.Timeline
	http      *http.Server
	grpc      *rpc.Server
	onHTTP    net.Listener
	onGRPC    net.Listener

	closers []func() error // in the order of opening
	grace   time.Duration
}

// Start connects everything and binds the ports. After an error nothing is left
// open.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (_ *App, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	a := &App{cfg: cfg, log: log, grace: gracePeriod, timeline: server.NewTimeline()}
	defer func() {
		if err != nil {
			_ = a.disconnect() // err has the cause
		}
	}()
	// The ledger opens first and closes last. Its claim must outlive everything that
	// may write to it.
	if err := a.openLedger(ctx); err != nil {
		return nil, err
	}
	if err := a.openTelemetry(ctx); err != nil {
		return nil, err
	}
	if err := a.openEngine(ctx); err != nil {
		return nil, err
	}

	// One resolver serves both transports and the sweeper. It looks the operation up
	// in the ledger.
	var resolver idem.Resolver
	if cfg.Resolver == resolverLedger {
		resolver = payments.LedgerResolver(a.books, cfg.ledgerIsPrivate(), answer)
	}
	if err := a.makeSweeper(resolver); err != nil {
		return nil, err
	}

	operatorsPage, err := a.makeConsole()
	if err != nil {
		return nil, err
	}

	// Both servers use one engine, and so share the keys.
	service := &payments.Service{Ledger: a.books, Latency: cfg.ProcessorLatency, LatencyFirst: cfg.joined(), Log: log, Step: a.timeline.Step}
	if cfg.Demo {
		service.Crash = func() {
			a.timeline.AwaitTold(time.Second)
			crash()
		}
	}
	handler, err := server.New(server.Config{Engine: a.engine, Service: service, Ledger: a.books, Keys: cfg.APIKeys,
		Telemetry: a.telemetry, Log: log, Wait: cfg.Wait, Resolver: resolver, Console: operatorsPage, Timeline: a.timeline})
	if err != nil {
		return nil, err
	}
	a.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 << 20, // so that the middleware refuses a very long key, with a reason
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	// A browser sends a POST again if a connection that it reuses ends without an answer, and the
	// page could not tell. So a press of "Crash mid-charge" gets a connection of its own.
	a.http.SetKeepAlivesEnabled(!cfg.Demo)
	a.http.RegisterOnShutdown(a.timeline.Close)
	a.grpc, err = rpc.New(rpc.Config{Engine: a.engine, Service: service, Ledger: a.books, Keys: cfg.APIKeys,
		Telemetry: a.telemetry, Log: log, Wait: cfg.Wait, Resolver: resolver})
	if err != nil {
		return nil, err
	}
	return a, a.listen(ctx)
}

// openTelemetry sets metrics and traces up. The rest of the start uses a context that ends, and
// the exporters outlive it.
func (a *App) openTelemetry(ctx context.Context) (err error) {
	if a.telemetry, err = telemetry.New(context.WithoutCancel(ctx), a.log); err != nil {
		return err
	}
	a.closers = append(a.closers, closing(a.telemetry.Close))
	return nil
}

// engineOptions are those of the engine alone.
func (a *App) engineOptions() []idem.Option {
	opts := []idem.Option{idem.WithLogger(a.log), a.telemetry.Observer.Engine(), idem.WithObserver(a.timeline.Observe),
		idem.WithMaxOpenExecutionsPerScope(a.cfg.MaxOpen)}
	if a.cfg.FingerprintKeys != nil {
		primary, others := a.cfg.FingerprintKeys.FingerprintKeys()
		opts = append(opts, idem.WithFingerprintKeys(primary, others...))
	}
	if len(a.cfg.Operators) > 0 { // the console needs the engine, so it is made later
		opts = append(opts, idem.WithObserver(func(ctx context.Context, ev idemtelemetry.Event) { a.console.Observe(ctx, ev) }))
	}
	return opts
}

// options are those of every set-up.
func (a *App) options() []idem.SetupOption {
	opts := []idem.SetupOption{a.sealing()}
	for _, opt := range a.engineOptions() {
		opts = append(opts, opt)
	}
	return opts
}

// answer is a [payments.Answer]. It uses the transport of the payment's request.
func answer(route string, p payments.Payment) (idem.Response, error) {
	if rpc.Owns(route) {
		return rpc.Answer(p)
	}
	return server.Answer(p)
}
