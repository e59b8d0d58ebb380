// Package stripe shows refusals in the format of Stripe's errors, for services whose
// clients use Stripe's libraries. It is an example to copy. It has a module of its own,
// and its tests use stripe-go as the client.
//
//	protect := idemhttp.MustNew(engine, policy, exchange.Config{
//		Methods: []string{http.MethodPost}, // these clients send no key with a DELETE
//		Refuse:  stripe.Refusals("https://example.com/docs/keys"),
//	})
//
// # When these clients retry
//
// stripe-go (v85) cannot read a refusal as problem+json. It takes any such answer of 400
// and above for a broken connection, and sends the request three times. It retries a
// readable answer only for status 429 with the code "lock_timeout". Stripe's other
// libraries obey the header Stripe-Should-Retry. Without the header they retry 409, and 500
// and above. So this package answers as follows:
//
//   - If the first request is still running, the answer is 429 with lock_timeout. Every
//     library asks again and gets the outcome.
//   - Any other refusal that is worth sending again, such as 503, has the header
//     Stripe-Should-Retry: true. stripe-go gives it to its caller. The caller may send the
//     request again with the same key.
//   - All other refusals have the header with false. No library repeats them.
//   - An unknown outcome is 500 with the code outcome_unknown. Stripe itself replays the 500 of
//     the first request, and tells its users to treat a 500 as indeterminate. A 409 would read
//     as "declined" to them.
package stripe
