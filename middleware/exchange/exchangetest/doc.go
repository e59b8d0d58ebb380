// Package exchangetest is the suite that every HTTP adapter has to pass: real
// listeners, the real engine, in-process lock and token store. Cases named
// "bug N" are the bugs that bit other libraries, as docs/notes lists them.
package exchangetest
