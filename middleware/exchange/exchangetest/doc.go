// Package exchangetest is the suite for adapters on package exchange. It serves real
// listeners with the real engine, on the in-process lock and token store. Cases named "bug
// N" repeat bugs of other libraries.
//
// [Run] takes an [Adapter]. Its Protect puts the middleware of the framework around a
// net/http handler, with the given config of package exchange. Its Beyond names the cases that the
// framework makes impossible, each with the reason. The suite_test.go of the adapter for Gin is a
// short example.
package exchangetest
