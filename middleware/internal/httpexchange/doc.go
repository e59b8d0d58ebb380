// Package httpexchange is what the adapters for HTTP share: it reads a request
// into an [idem.Operation], keeps the handler's response until the engine has
// settled it, and writes answers, stored outcomes and refusals. It decides
// nothing that the engine decides.
//
// One exchange:
//
//	Idempotency-Key, scope ──▶ body, up to the limit ──▶ Engine.Do ──┬─▶ handler's response (live)
//	        │                        │                      │       ├─▶ stored response (replayed)
//	        └── 400, 500             └── 400, 413           │       └─▶ refusal (problem+json)
//	                                              handler ◀─┘
//	                                              writes to a Capture
//
// The order matters. Nothing of a live response reaches the client before the
// engine has settled it, so that a client which has the answer also finds it
// again. A handler that flushes, hijacks, or writes more than the policy keeps
// gives that up: its response passes through, and counts as omitted.
package httpexchange
