// Package exchangetest is the suite for adapters on package exchange. It serves real
// listeners with the real engine, on the in-process lock and token store. Cases named "bug
// N" repeat bugs of other libraries.
package exchangetest
