// Package resend is what the clients of all transports share: the key of a
// logical call, and when to send it again. What may be sent again is for the
// transports to say, since they can read the answer.
//
// A call has one key for all of its attempts. Between attempts it waits for as
// long as the server asked, and for a random part of a growing back-off, so
// that callers who were turned away together do not come back together (M.
// Brooker, "Exponential Backoff And Jitter", 2015).
package resend
