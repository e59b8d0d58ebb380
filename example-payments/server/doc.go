// Package server is the sample's HTTP: routes, authentication, validation, and
// what clients are told.
//
// The order on the routes that move money is authenticate, read and validate
// the body, idempotency middleware, handler. So a request that may not be made
// or makes no sense leaves its key untouched, and a replay is given only to
// whom the key belongs. Of a missing key and an invalid body, the body is told
// first.
//
// Beside the contract: bodies may have any Content-Type, and are read as JSON;
// members that are not known are refused; ?limit=N bounds a list (1,000 by
// default), whose has_more says that there is more.
package server
