// Package stripe shows refusals in the format of Stripe's errors, for services
// whose clients are Stripe's libraries, or were written for them. It is an example
// to copy, in a module of its own, whose tests ask stripe-go itself.
//
//	protect := idemhttp.Middleware(engine, policy,
//		idemhttp.WithMethods(http.MethodPost), // these clients send no key with a DELETE
//		idemhttp.WithRefusals(stripe.Refusals("https://example.com/docs/keys")))
//
// # When these clients retry
//
// stripe-go (v85) takes every answer of 400 and above that it cannot read for a
// broken connection, whatever the status, and sends the request again: a refusal as
// problem+json goes out three times. One that it can read it retries only where the
// status is 429 and the code "lock_timeout". Stripe's other libraries obey the
// header Stripe-Should-Retry, and without it retry 409 and 500 and above. So
//
//   - a request that is still running is 429 with lock_timeout: every library
//     asks again, and gets the outcome;
//   - whatever else is worth sending again, 503 above all, says
//     Stripe-Should-Retry: true. stripe-go hands it to its caller, who may send it
//     again with the same key;
//   - all other refusals say false. No library repeats them.
package stripe
