// Package observe tells the operators of a service what the library does: metrics and traces
// with OpenTelemetry, and a log with [log/slog]. The library itself does not import it.
//
// One line switches all of it on:
//
//	engine, err := idem.New(locker, store, observe.New().Engine())
//
// and one more adds the sweeper:
//
//	o := observe.New(observe.WithLogger(slog.Default()))
//	engine, err := idem.New(locker, store, o.Engine())
//	sweeper, err := sweeper.New(engine, policies, o.Sweeper())
//
// [New] uses the providers that the application has set with otel.SetMeterProvider and
// otel.SetTracerProvider. Without providers, metrics and traces go nowhere.
//
// # Traces
//
// Each request is a span with children:
//
//	idemkeeper.request ─┬─ idemkeeper.read      the store is asked for the record
//	                    ├─ idemkeeper.wait      a duplicate waits for the request that runs
//	                    ├─ idemkeeper.lock      the lock is asked for
//	                    ├─ idemkeeper.begin     the attempt begins
//	                    ├─ idemkeeper.handler   the handler, with its own spans below
//	                    ├─ idemkeeper.settle    the outcome is stored
//	                    └─ idemkeeper.resolve   the resolver is asked, within begin or request
//
// The span context of a recorded handler is kept with its response. A replay is linked to it,
// on every instance and for as long as the response is kept. The calls of a client of Redis,
// SQL or HTTP that is instrumented appear below these spans.
//
// # Metrics
//
// Durations are histograms in seconds, and their counts are the numbers of requests, attempts
// and calls.
//
//	idemkeeper.request.duration    requests by idemkeeper.route, idemkeeper.outcome, error.type
//	idemkeeper.step.duration       steps by idemkeeper.route, idemkeeper.step, error.type
//	idemkeeper.events              events out of the ordinary by idemkeeper.route, idemkeeper.event
//	idemkeeper.running_executions  handlers that run in this process
//	idemkeeper.running_oldest      run time of the oldest of them
//	idemkeeper.open_records        open records by idemkeeper.state, idemkeeper.age
//	idemkeeper.doubts              records in doubt by idemkeeper.route, idemkeeper.age
//	idemkeeper.open_oldest         age of the oldest of them by idemkeeper.state
//	idemkeeper.unlisted_stores     stores whose open records could not be listed, or not all of them
//	idemkeeper.unreadable_records  open records that cannot be read, by idemkeeper.reason
//	idemkeeper.sweeper_leads       1 in the instance that sweeps
//	idemkeeper.sweeper_passes      walks over the open records by idemkeeper.result
//	idemkeeper.swept_records       records that the sweeper looked at, by idemkeeper.result
//
// The outcome of a request is refused, replayed, completed, released, unknown, unsettled,
// failed-open or unprotected. For a refusal error.type is its code. The steps are wait, lock,
// handler, settle and resolve, and each handler is an execution. An error.type "locked" of
// lock says that another owner has the lock. The events are those of [telemetry.EventType], such as
// unknown, failed-open, ownership-lost, settle-delayed and repaired. No attribute holds the text
// of a client. The gauges of open records ask the store each time they are read, for at most a
// second and a thousand records of a state. All instances of a store report the same ones.
//
// # Logs
//
// [WithLogger] logs every event of a key with the operation ID in the attribute "op". One grep
// for it tells the story of the key, with the attempts, the outcome and the reasons. The key
// itself is never logged, and "trace_id" leads to the trace. Events without a key are logged at
// debug level.
//
// In an outage every request is refused for the same reason. [LimitHandler] keeps that from
// becoming a flood of lines. It logs a reason at once when it appears, and repeats it at most
// once a second, with a count.
package observe
