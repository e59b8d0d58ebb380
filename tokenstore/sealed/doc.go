// Package sealed encrypts stored responses before they reach a token store.
//
// A [Store] wraps any [idem.Store]. Responses go into it encrypted with
// AES-256-GCM and come back opened, so that who can read the token store, its
// backups and its network sees who paid when, not what was answered:
//
//	stored, in the clear       state, status of the response, route, key ID,
//	                           attempt, fingerprint, times, decision, and about
//	                           how long the response is
//	stored, encrypted          header, trailer and body of the response
//	stored by nobody           raw keys and tokens
//
// # What is guaranteed
//
// A response is handed out only as it was sealed, for the key and the attempt
// that it was sealed for, with the status that it had. Who can write to the
// token store can remove responses, not forge, change or move them. He can do
// other harm: the rest of the record is not protected, and one that is set back
// to released runs again.
//
// The fingerprint of a request is a hash without a secret: who reads the store
// and can guess a request can tell whether he guessed right. Lengths are not
// hidden.
//
// # The sealed form
//
// The wrapped store is given a [idem.Response] with the status as it was, the
// one header field [Marker], Omitted set, and a body of
//
//	version (1 byte) | length of ring key ID (1) | ring key ID | nonce (12) | ciphertext | tag (16)
//
// where the plain text is the binary form of the response, and version, ring key
// ID, key ID, attempt (number, fence, nonce) and status are authenticated with
// it. Omitted is for readers that know nothing of sealing, such as an instance
// of an earlier build: they answer that the result is unavailable, rather than
// with the ciphertext. A response that is Omitted and otherwise empty holds
// nothing to seal, and stays as it is.
//
// # What cannot be opened
//
// A response is unreadable where its ring key is not in the [Ring], where it was
// changed or moved, and where it is plain without [WithPlain].
//
//	Get, completed             an error that wraps ErrUnreadable and
//	                           idem.ErrUnavailable: 503, worth sending again once
//	                           the ring is mended. The record comes beside it.
//	all else                   the record, with its response Omitted
//
// The engine does not fail open on a key of which it knows that it was used,
// which is why the record comes beside the error.
//
// An error would do harm elsewhere. Of an unknown outcome the response is not
// the result: its resolver has to be asked, which an error of Get would prevent.
// An error of Begin is taken for a Begin without an answer: the lock stays held
// while it is aborted. Settle has settled, and an error would have it repeated
// for ever. A listing must not fail for one record.
//
// # Keys
//
// Nonces are random. NIST SP 800-38D (section 8.3) allows 2^32 messages under
// one key then, for all processes that share it together. Each settlement that
// stores a response is one, and so is each time that it is tried again: at 100
// requests a second that is 497 days, at 1,000 a second 49. Change the key well
// before, see [Ring].
package sealed
