package driver

import (
	"context"
	"errors"
	"time"
)

// JoinedDomain is the lock domain of every attempt of a joined engine. Such an attempt has no
// lock. The transaction takes its place, and the token of its fence is the number of the attempt.
const JoinedDomain = "joined"

// JoinedFence is the fence in the record of a joined attempt.
func JoinedFence(number uint32) Fence { return Fence{Domain: JoinedDomain, Token: uint64(number)} }

// Facts that a [JoinedTx] reports. Implementations wrap them with details.
var (
	// ErrRolledBack says that the transaction was rolled back for certain. Nothing of it remains.
	ErrRolledBack = errors.New("idem: the transaction was rolled back")
	// ErrConflict says that the transaction was rolled back for certain because of a
	// serialisation failure or a deadlock. Another try may succeed.
	ErrConflict = errors.New("idem: the transaction met a conflict and was rolled back")
	// ErrSwallowed says that a statement of the transaction had failed, or that the handler had ended
	// it, and that the handler answered with success all the same. The transaction was rolled back for certain.
	ErrSwallowed = errors.New("idem: the handler answered with success, and its transaction could not be committed")
	// ErrEscaped says that the transaction had ended before the handler returned. The handler
	// ended it by a statement of its own, and what it wrote may have been committed.
	ErrEscaped = errors.New("idem: the handler ended the joined transaction by itself")
)

// JoinedStore is a [Store] in the database of the application. A record can commit there
// together with what the handler writes. It is safe for concurrent use.
type JoinedStore interface {
	Store

	// BeginJoined opens a transaction on the primary. Its first statement takes the key: it
	// inserts the pending record, or updates the one that lets an attempt start, as
	// [Store].Begin has it. The new attempt has the fence of [JoinedFence].
	//
	// The wait for other transactions is finite. If BeginJoined has waited for one, or met a
	// conflict, the transaction is rolled back and begun anew, so that the handler sees what
	// was committed meanwhile. The limit of the wait does not reach the handler's statements.
	//
	// A committed record that does not let the attempt start comes back without a wait for the transactions of
	// others, or the key counts as held if one of them has locked that record. A store that cannot look and begin in one round trip looks first, unless Looked is set.
	//
	// ctx bounds the call only. The transaction goes on after ctx has ended. It leaves at least
	// one connection of the pool to other calls.
	BeginJoined(ctx context.Context, id KeyID, req JoinedRequest) (JoinedBegin, error)

	// BeginWithoutKey opens a transaction on the primary for a request without a key. It takes no key and
	// writes no record. Otherwise it is as one of BeginJoined, with the same bounds. handlerTimeout is as in
	// [JoinedRequest]. Commit of the transaction does not look at the settlement. After an error that wraps
	// none of the four, nothing tells whether it was committed.
	BeginWithoutKey(ctx context.Context, handlerTimeout time.Duration) (JoinedTx, error)

	// Held reports whether an attempt of the key runs in a transaction that has not ended. The
	// answer is a hint, and it may come from this process alone if the process owns the
	// database.
	Held(ctx context.Context, id KeyID) (bool, error)

	// Probe waits until no transaction holds the key, and returns the record that the primary
	// has then. It tries to take the key and rolls that back. An error decides nothing.
	Probe(ctx context.Context, id KeyID) (Record, error)

	// Bind commits a fingerprint for the key, unless the key has one, and returns the one it
	// has. It lasts for ttl from the last call and survives a rollback of the attempt.
	Bind(ctx context.Context, id KeyID, fp Fingerprint, ttl time.Duration) (Fingerprint, error)
}

// JoinedRequest is an attempt that wants to start in a transaction.
type JoinedRequest struct {
	Kind        KeyKind
	Route       string // at most 255 bytes
	Nonce       Nonce
	Fingerprint Fingerprint
	// RunAgainFrom, if set, is the open attempt to start over from, as in [BeginRequest].
	RunAgainFrom *Attempt
	// ResultTTL and KeyTTL are those of the route, as in [BeginRequest]. Commit keeps the longest
	// of them, of those in the record and of those in the settlement.
	ResultTTL, KeyTTL time.Duration
	// HandlerTimeout is the deadline of the handler, or 0. The database ends the transaction by
	// itself if it is idle for longer.
	HandlerTimeout time.Duration
	// Looked says that the caller has read the record just now, and that the attempt may start as far as that tells.
	Looked bool
}

// JoinedBegin is the answer of BeginJoined.
type JoinedBegin struct {
	// Tx is the open transaction, or nil if the attempt did not start.
	Tx JoinedTx
	// Held says that the attempt did not start because another transaction holds the key. There is no Record then.
	Held bool
	// Record is the record of the new attempt as the transaction sees it, or the committed
	// record that did not let it start.
	Record Record
	// Replaced is the place that the new attempt took.
	Replaced Replaced
}

// JoinedTx is the transaction of one attempt. The engine ends it once, by Commit or by Rollback.
// Afterwards nothing that the handler kept of it can write. The handler may use it from other
// goroutines until then. Last of all the engine calls Release.
type JoinedTx interface {
	// Commit makes the record completed as s says. This is the last statement and changes one
	// row. Then it commits the transaction, in limited time. After ErrResponseInvalid nothing
	// has happened, and Commit can be called again.
	//
	// The error wraps ErrRolledBack, ErrConflict, ErrSwallowed or ErrEscaped. After any other
	// error the transaction may have been committed, and Probe tells.
	Commit(ctx context.Context, s Settlement) error

	// Rollback rolls the transaction back. The error wraps ErrEscaped if the handler had ended
	// the transaction by itself. After any other error the database rolls the transaction back
	// when it notices the end of the connection.
	Rollback(ctx context.Context) error

	// Release frees what is left of the transaction. After ErrEscaped the key may stay held until
	// then, so that no attempt starts before the outcome is recorded as unknown.
	Release(ctx context.Context)

	// Check confirms that the transaction is still open, and returns for how long the database
	// keeps it if it is idle from now on. The error wraps ErrEscaped if the handler has ended
	// it, and otherwise ErrUnavailable.
	Check(ctx context.Context) (time.Duration, error)

	// Conflict reports whether an error of one of its statements is a serialisation failure or
	// a deadlock.
	Conflict(err error) bool
}
