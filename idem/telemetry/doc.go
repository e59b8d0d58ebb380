// Package telemetry has the events and the steps that an engine reports, for logs, metrics and
// traces. Package observe turns them into OpenTelemetry and log lines.
//
// An [Observer] gets every [Event], such as a replay, a refusal or an outcome in doubt. A [Recorder]
// gets the events too. It also measures the steps of each request, from [StepRequest] for the whole
// to [StepSettle] for storing the outcome.
//
// Events and steps hold neither keys nor bodies, so they may be logged.
package telemetry
