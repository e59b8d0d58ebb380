package driver

import (
	"bytes"
	"context"
	"errors"
	"time"
)

// Facts that a [Store] reports. Implementations wrap them with details.
var (
	// ErrStoreLost says that the store lost records it had acknowledged. The store refuses
	// until an operator accepts the loss.
	ErrStoreLost = errors.New("idem: token store lost its records")
	// ErrResponseInvalid says that a response can never be stored. The call did nothing.
	ErrResponseInvalid = errors.New("idem: response cannot be stored")
	// ErrStaleFence says that a later holder has been there, or that the attempt is over.
	ErrStaleFence = errors.New("idem: fence is stale")
	// ErrNewerRecord says that a newer build wrote the record. The call did nothing. Only an
	// instance of such a build can go on with the key, so a retry does not help.
	ErrNewerRecord = errors.New("idem: a newer build wrote this")
	// ErrNoWrites says that the store takes no writes at the moment, for example because its
	// memory is full or its replicas are away, and that the call did nothing. A store wraps it
	// only around an answer that leaves no doubt. Reads may go on.
	ErrNoWrites = errors.New("idem: token store takes no writes")
	// ErrCorruptRecord says that the record of the key cannot be read. The call did nothing,
	// and a retry does not help.
	ErrCorruptRecord = errors.New("idem: record cannot be read")
)

// Store keeps one [Record] per key ID. It is safe for concurrent use.
//
// Every method is atomic. It takes effect as a whole or not at all, and later reads by any
// process see it. A client library or a network may send every call twice, late, and with any
// other call in between. The second time changes nothing more, and its answer is that of the
// first unless another call came between. Times and expiries are those of the clock of the
// store, never of the caller.
//
// Do not use a context after its call.
//
// A record that cannot be read hurts only its own key. Get, Issue, Begin, Settle and Abort
// leave it as it is, and their error wraps ErrNewerRecord or ErrCorruptRecord. If only the
// response cannot be read, the record comes without it, and with [Record].ResponseErr.
//
// After ErrStoreLost, ErrStaleFence, ErrNoWrites, ErrNewerRecord, ErrCorruptRecord and
// ErrResponseInvalid the call had no effect. After any other error it may have taken effect. If a
// client library sends calls again by itself, ErrNoWrites is the answer to the last copy, and an earlier one
// may have had an effect.
//
// Every Store has to pass the suite in package idemtest.
type Store interface {
	// Get returns the record, or one in StateNone. It sees the last acknowledged write, and
	// never asks a replica. It returns ErrStoreLost if there is no record and the store is
	// known to have lost some.
	Get(ctx context.Context, id KeyID) (Record, error)

	// Issue makes a record in StateIssued that expires after ttl. It returns an existing record
	// as it is.
	Issue(ctx context.Context, id KeyID, ttl time.Duration) (Record, error)

	// Begin starts an attempt if the record allows it. The new record has the ResultTTL and
	// KeyTTL of the request, or those of the open attempt in whose place it starts, whichever is
	// longer. An attempt after a released one has a KeyTTL that ends no earlier than the released
	// key:
	//
	//	none, client key               pending, attempt 1
	//	issued, same kind              pending, next attempt
	//	released, same kind            pending, next attempt
	//	pending by this very attempt   as it is: Begun again
	//	anything else                  as it is: not Begun
	//
	// A request with RunAgainFrom starts from one record only:
	//
	//	pending or unknown by that attempt, same kind and fingerprint   pending, next attempt
	//	pending by this very attempt                                    as it is: Begun again
	//	anything else                                                   as it is: not Begun
	//
	// It returns ErrStaleFence if the fence of the record is of the same domain and above that
	// of the request, or equal to it and of an attempt that is over. The result has the record then. It returns ErrStoreLost if
	// the store is known to have lost records. A pending record never expires.
	Begin(ctx context.Context, id KeyID, req BeginRequest) (BeginResult, error)

	// Settle closes its attempt, or marks it unknown, if the stored attempt is the same and
	// open. With Repair it also repairs a store that has fallen back, for example a promoted
	// replica that was stale:
	//
	//	no record                                           written anew
	//	issued, never used                                  replaced
	//	issued or released under a lower fence              replaced
	//	pending or unknown under a lower fence and number   replaced
	//	of another domain, and exactly Repair.Replaced      replaced
	//	anything else                                       as it is: not Settled
	//
	// Lower means lower in the same domain, and the kind has to be the same. So Settle never
	// replaces a completed record, nor one of an equal or a higher fence. It returns
	// ErrResponseInvalid if the store cannot hold the response.
	//
	// The author of a settlement may not know the route. So Settle takes the longest ResultTTL
	// and KeyTTL of the settlement, its Repair and the record, which includes a record that it
	// replaces, as Begin does. An unknown record keeps them.
	Settle(ctx context.Context, id KeyID, s Settlement) (SettleResult, error)

	// Abort undoes a Begin without an answer, and refuses it if it still arrives. A pending
	// record of this very attempt becomes released or issued again, with its earlier attempt
	// number. Abort leaves the fence in a missing record, and in an older one that is issued or
	// released. Anything else stays as it is. If no token was issued, Abort leaves nothing,
	// because a Begin without a token is refused anyway and a record must not make it valid.
	//
	// Abort of a Begin with RunAgainFrom makes its attempt unknown, without a response, even if
	// the Begin had not arrived. So the key stays bound to its request.
	Abort(ctx context.Context, id KeyID, req BeginRequest) error

	// ListOpen lists records with an open attempt, oldest first, and unreadable ones that may
	// be open. The work of one call is bounded. So a page may have fewer records than asked
	// for, even zero, and more pages may follow all the same. If a part of the store does not
	// answer, ListOpen returns the records of the others together with an error.
	ListOpen(ctx context.Context, q OpenQuery) (OpenPage, error)

	// RetireDomain records the word of an operator that a lock domain is dead for good, and
	// that no holder of its locks still runs. A second call does nothing. A domain has 1 to 255
	// bytes.
	RetireDomain(ctx context.Context, domain string, d Decision) error

	// DomainRetired reports whether a lock domain was retired.
	DomainRetired(ctx context.Context, domain string) (bool, error)

	// NoteFence keeps a fence that a lease had, if it is the highest of its domain so far. The
	// engine calls it once in a while for a [HistoryLocker]. A store that lost records may have
	// lost it too.
	NoteFence(ctx context.Context, f Fence) error

	// HighestFence returns the token of the highest fence of a domain that was noted, and 0
	// without one. A store may cut off tokens at 1<<63-1.
	HighestFence(ctx context.Context, domain string) (uint64, error)

	// Ping returns nil if the store can be reached and would accept a Begin.
	Ping(ctx context.Context) error

	// Visibility says who can see the records.
	Visibility() Visibility
}

// ReadOnlyStore is a [Store] that may have been made for tools, without writes. No engine takes it then.
type ReadOnlyStore interface{ ReadOnly() bool }

// BeginRequest is an attempt that wants to start.
type BeginRequest struct {
	Kind        KeyKind
	Route       string // at most 255 bytes
	Fence       Fence
	Nonce       Nonce
	Fingerprint Fingerprint
	// RunAgainFrom, if set, is the open attempt to start over from, without asking for its
	// outcome. All its fields are compared.
	RunAgainFrom *Attempt
	// ResultTTL and KeyTTL are how long the route keeps a result and remembers a key. Begin puts
	// them into the record. Abort keeps the fence for KeyTTL in a record of its own. Zero means
	// that they are not known.
	ResultTTL, KeyTTL time.Duration
}

// BeginResult is the answer of Begin.
type BeginResult struct {
	Begun    bool     // the attempt of the request is pending, as Record.Attempt
	Record   Record   // as it is after the call
	Replaced Replaced // the place that the new attempt took
}

// Replaced names the record in whose place an attempt began. It is zero without one.
type Replaced struct {
	State   State
	Attempt Attempt
}

// DefaultKeyTTL is how long a key is remembered if its settlement does not say it.
const DefaultKeyTTL = 7 * 24 * time.Hour

// Settlement closes an attempt or marks it unknown.
type Settlement struct {
	// Attempt is the one to settle, as Begin returned it. Number, fence and nonce are compared.
	Attempt Attempt
	// ID names this settlement. It tells a repetition of it from another one that came first.
	// The holder uses the nonce of its attempt.
	ID Nonce
	// State is StateCompleted, StateReleased or StateUnknown. A released token is issued again,
	// with its old expiry.
	State State
	// Response goes to repeats. StateCompleted requires it, StateUnknown may have it, and
	// StateReleased ignores it.
	Response *Response
	// ResultTTL is how long a completed response is kept, unless the record says longer.
	ResultTTL time.Duration
	// KeyTTL is how long a completed or released key is remembered, unless the record says
	// longer. It is at least ResultTTL, and 0 means DefaultKeyTTL. An unknown key never expires.
	KeyTTL time.Duration
	// Repair, if set, lets Settle repair a record that is missing or older than the attempt.
	// Settle does not write a released token anew if it is missing, because its expiry is not
	// known. The settlement stands then, and the store goes on without the token. Settle
	// removes a token that was written anew as unknown when it is released.
	Repair *Repair
	// LeaseTrusted says that the lease of the attempt proves right now that no later attempt
	// can have begun. Without it a settlement to StateReleased repairs nothing. The other
	// states only forbid further attempts.
	LeaseTrusted bool
	// Decision names the author, unless that is the holder.
	Decision Decision
}

// Repair is the data to repair a record, from the request and the result of Begin.
type Repair struct {
	Kind        KeyKind
	Route       string
	Fingerprint Fingerprint
	Started     time.Time
	Replaced    Replaced      // by Begin, or read beside a marker: only it gives way if its domain is another
	ResultTTL   time.Duration // of the lost record, like KeyTTL
	KeyTTL      time.Duration
}

// SettleResult is the answer of Settle.
type SettleResult struct {
	Settled  bool   // this settlement stands
	Repaired bool   // it replaced a record that was missing or older than its attempt
	Record   Record // as it is after the call; StateNone without one
}

// OpenQuery selects open records.
type OpenQuery struct {
	State     State         // StatePending or StateUnknown, or StateNone for both; each includes unreadable ones
	OlderThan time.Duration // since the attempt began, by the store's clock
	After     *OpenCursor   // the listing goes on after it; nil starts it
	Limit     int           // the largest number of records; 0 is 1,000
	// WithoutResponses leaves out the responses, so that the store need not read them.
	WithoutResponses bool
	// Skip, if set, reports the records to leave out, by their places. The store need not read
	// them. It calls Skip in the goroutine of the caller, and maybe again for the same place.
	Skip func(OpenCursor) bool
}

// OpenCursor is a position in the list of open records. They are ordered by the start of the
// attempt, then by key ID.
type OpenCursor struct {
	Started time.Time
	ID      KeyID
}

// Compare is negative if c comes before d, and positive if it comes after.
func (c OpenCursor) Compare(d OpenCursor) int {
	if n := c.Started.Compare(d.Started); n != 0 {
		return n
	}
	return bytes.Compare(c.ID[:], d.ID[:])
}

// OpenPage is the answer of one ListOpen.
type OpenPage struct {
	Records []OpenRecord
	// Next is the [OpenQuery].After of the next page. It is nil after the last one.
	Next *OpenCursor
}

// OpenRecord is one row of an open-records listing.
type OpenRecord struct {
	ID     KeyID
	Record Record
	// Err says why the record cannot be read. It wraps ErrNewerRecord or ErrCorruptRecord. The
	// record then has nothing but Started, for its position.
	Err error
}

// Cursor is the position of the record among the open ones.
func (r *OpenRecord) Cursor() OpenCursor { return OpenCursor{Started: r.Record.Started, ID: r.ID} }
