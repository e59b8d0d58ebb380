// Package auth tells whose API key a request carries, for both transports of
// the sample.
package auth
