// Package observe helps a service to tell its operators what the library does. The
// library itself does not import it.
//
// In an outage every request is refused for the same reason. [LimitHandler] keeps that
// from becoming a flood of lines. It logs a reason at once when it appears, and repeats
// it at most once a second, with a count.
package observe
