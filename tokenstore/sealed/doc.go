// Package sealed encrypts stored responses before they reach a token store.
//
// A [Store] wraps any [driver.Store], and a [Joined] any [driver.JoinedStore]. It encrypts responses with AES-256-GCM on their way in
// and opens them on their way out. A reader of the token store, its backups or its network
// traffic still sees who paid when, but not the answers.
//
//	stored in the clear    state, status of the response, route, key ID, attempt,
//	                       fingerprint, times, decision, and roughly the length of
//	                       the response
//	stored encrypted       header, trailer and body of the response
//	never stored           raw keys and tokens
//
// # What is guaranteed
//
// The store hands out a response only for its own key, attempt and status, and only unchanged.
// A writer of the token store can remove responses. It cannot forge, change or move them. The
// rest of the record is not protected. A writer can set a record back to released, and the
// operation then runs again.
//
// The fingerprint of a request is a hash without a secret, unless the engine has
// [idem.WithFingerprintKeys]. Without it a reader who guesses a request, such as the missing
// digits of a card number, can check the guess. [Ring.FingerprintKeys] makes the keys. Lengths
// are not hidden, and neither is a key that a client has made up and that can be guessed.
//
// # The sealed form
//
// The wrapped store gets an [driver.Response] with the original status, the one header field
// [Marker], Omitted set, and this body:
//
//	version (1 byte) | length of ring key ID (1) | ring key ID | nonce (12) | ciphertext | tag (16)
//
// The plain text is the binary form of the response. Version, ring key ID, key ID, attempt
// (number, fence, nonce) and status are authenticated with it. Omitted is for readers
// without this package, such as an instance of an earlier build. They answer that the
// result is unavailable, and do not send the ciphertext. A response that is Omitted and
// otherwise empty has no content to seal and stays as it is.
//
// # Responses that cannot be opened
//
// A response is unreadable if its ring key is not in the [Ring], if it was changed or moved,
// or if it is plain without [WithPlain].
//
//	Get, Probe, completed  an error that wraps ErrUnreadable and driver.ErrUnavailable. The
//	                       client gets 503 and can retry once the ring is repaired. Get
//	                       returns the record too, so the engine knows that the key was
//	                       used and does not fail open.
//	all other calls        the record, with its response Omitted
//
// An error would do harm in the other calls. The response of an unknown outcome is not its
// result, and an error of Get would keep the resolver from being asked. After an error of
// Begin the engine holds the lock while it aborts. After an error of Settle it would settle
// again for ever. A listing must not fail because of one record.
//
// # Keys
//
// Nonces are random. NIST SP 800-38D (section 8.3) then allows 2^32 messages under one key,
// for all processes together. Each settlement that stores a response is one message, and so
// is each repetition of it. 2^32 messages last 497 days at 100 requests a second, and 49
// days at 1,000. Change the key well before that, see [Ring].
package sealed
