package idem

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

type config struct {
	observers     []telemetry.Observer
	telemetry     telemetry.Recorder
	log           *slog.Logger // nil stands for slog.Default
	storeTimeout  time.Duration
	lockTimeout   time.Duration
	settleTimeout time.Duration

	maxOpenPerScope int
	maxWaiting      [2]int // per key, per scope
	conflictRetries int
	fingerprintKeys fingerprintKeys
	longRunning     time.Duration
	singleInstance  bool
	closers         []io.Closer
	lockSession     LockSession
}

func defaultConfig() config {
	return config{storeTimeout: time.Second, lockTimeout: 2 * time.Second, settleTimeout: 2 * time.Second, longRunning: time.Minute,
		maxWaiting: [2]int{defaultMaxWaitingPerKey, defaultMaxWaitingPerScope}}
}

func (c *config) validate() error {
	if c.storeTimeout <= 0 || c.lockTimeout <= 0 || c.settleTimeout <= 0 {
		return errors.New("idem: time-outs have to be positive")
	}
	if c.longRunning < 0 {
		return errors.New("idem: the time after which a handler is reported is negative")
	}
	if c.conflictRetries < 0 {
		return errors.New("idem: the number of retries after a conflict is negative")
	}
	if c.maxWaiting[0] < 1 || c.maxWaiting[1] < 1 {
		return errors.New("idem: at least one duplicate has to be allowed to wait; without DuplicateWait none does")
	}
	if c.maxOpenPerScope < 0 {
		return errors.New("idem: the limit of open executions is negative")
	}
	return c.fingerprintKeys.validate()
}

// Option configures an [Engine]. A nil Option is ignored.
type Option func(*config)

// SetupOption configures a function that makes an engine together with its lock and its store, such as sqlstore.Join or idemredis.New.
// Every [Option] is one, and so are the options of locks and stores that the function makes. It refuses others. A nil option is ignored.
type SetupOption interface{ ConfiguresEngine() }

// ConfiguresEngine makes it a [SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// WithObserver reports every event to fn. Several observers are called in their order. A nil fn
// is ignored.
func WithObserver(fn telemetry.Observer) Option {
	return func(c *config) {
		if fn != nil {
			c.observers = append(c.observers, fn)
		}
	}
}

// WithTelemetry measures the engine with t, for traces and metrics. Package observe has a
// Telemetry for OpenTelemetry. By default there is none.
func WithTelemetry(t telemetry.Recorder) Option { return func(c *config) { c.telemetry = t } }

// WithLogger sets the logger for what is wrong with the server: wiring faults, handlers that misuse the engine, runs without protection,
// outcomes that could not be stored, and refusals as internal, unavailable, store-lost and ownership-lost. Each fault is logged at once,
// and then once a minute at most, with the number of events in the attribute "repeated". The last count comes with [Engine.Close].
// A line has the route, the reason and the next step, and neither a key nor a body, unless the error of a database or of a handler quotes one, as
// MySQL does with a value that is there twice. A logger that blocks or panics does not stop a
// request. [slog.Default] by default, and slog.New(slog.DiscardHandler) turns it off. Without this option an engine whose telemetry logs
// every event ([telemetry.Logger]) logs no faults itself.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

// WithStoreTimeout bounds each call of the store. 1 s by default.
func WithStoreTimeout(d time.Duration) Option { return func(c *config) { c.storeTimeout = d } }

// WithLockTimeout bounds each call that takes or releases a lock. 2 s by default.
func WithLockTimeout(d time.Duration) Option { return func(c *config) { c.lockTimeout = d } }

// WithSettleTimeout sets how long the engine holds an answer back while it cannot settle the
// attempt. After that it answers and goes on in the background. 2 s by default.
func WithSettleTimeout(d time.Duration) Option { return func(c *config) { c.settleTimeout = d } }

// WithMaxOpenExecutionsPerScope bounds how many executions one scope may have open in this
// process at once. The engine refuses a request beyond that as [CodeTooManyOpen] before it
// takes a lock, unless the key has an open attempt. It never refuses a replay. 0, the default,
// is no limit.
//
// Choose it between two figures. An honest scope needs its requests per second at this instance
// times the seconds of one request, and a multiple of that for bursts. For all scopes together,
// this instance has the locks of its locker (4,096 by default with ZooKeeper) and the memory of
// as many handlers. With a quarter of the locks, one scope cannot take them all. All global
// keys are one scope.
func WithMaxOpenExecutionsPerScope(n int) Option { return func(c *config) { c.maxOpenPerScope = n } }

// WithMaxWaiting bounds how many duplicates may wait in this process at once, for one key and for
// one scope. The engine refuses a duplicate beyond that as [CodeInProgress] at once, as without
// [Policy].DuplicateWait. Each of them keeps the body of its request in memory, up to
// [Policy].MaxRequestBody. With the defaults, 100 per key and 1,000 per scope, duplicates of one key
// take 100 MiB at most, and those of a scope 1,000 MiB. All global keys are one scope.
func WithMaxWaiting(perKey, perScope int) Option {
	return func(c *config) { c.maxWaiting = [2]int{perKey, perScope} }
}

// WithLongRunning sets the time after which the engine reports a running handler as
// [telemetry.EventLongRunning]. It reports the handler again after twice that time, four times, and
// so on. The handler holds its key all the while. 1 min by default, 0 is never. See also
// [Engine.Running].
func WithLongRunning(d time.Duration) Option { return func(c *config) { c.longRunning = d } }

// WithSingleInstance says that no other instance of the service runs, also not during a deployment.
// [New] then accepts a shared lock with a token store that only this process can see. [NewJoined], which
// has no lock, refuses it.
func WithSingleInstance() Option { return func(c *config) { c.singleInstance = true } }

// WithCloser has [Engine.Close] close c in the end, for example a store that only this engine uses. It may be
// given several times, and they are closed in that order.
func WithCloser(c io.Closer) Option {
	return func(cfg *config) {
		if c != nil {
			cfg.closers = append(cfg.closers, c)
		}
	}
}

// LockSession holds the locks of an engine. A redislock.Locker is one, and so are a sqllock.Locker and a zookeeper.Client.
type LockSession interface {
	// Close gives the locks back, and returns when ctx ends at the latest.
	Close(ctx context.Context) error
	// Abandon gives no lock back. They go on for their time to live.
	Abandon()
}

// WithLockSession has [Engine.Close] end s, after what [WithCloser] names. If operations are left, it abandons s, so that the locks of
// these operations outlive the process and protect their keys. [NewJoined], which has no lock, refuses it.
func WithLockSession(s LockSession) Option { return func(c *config) { c.lockSession = s } }

// WithConflictRetries lets an engine from [NewJoined] run a handler again after its transaction
// met a serialisation failure or a deadlock, at most n times for one request. The engine learns
// of it from the commit, from the error of the handler, or from [ReportFailure]. The handler must
// be free of effects outside of the transaction, but for calls with [DownstreamKey]. Without a key those would be other calls, so
// a request without one runs once on a route with [Policy].CallsOtherSystems. 0, the default, tells the client to retry. [New], which
// has no transaction, refuses any other number.
//
// It applies to [Engine.Do], to handlers of net/http, to unary calls of gRPC, and to Gin with
// the middleware of package middleware/gin right in front of the handler.
func WithConflictRetries(n int) Option { return func(c *config) { c.conflictRetries = n } }
