package idem

import (
	"bytes"
	"context"
	"errors"
	"time"
)

// Facts a [Store] reports. Implementations wrap them with what happened.
var (
	// ErrStoreLost says that the store lost records it had acknowledged. It
	// goes on refusing until an operator accepts the loss.
	ErrStoreLost = errors.New("idem: token store lost its records")
	// ErrResponseInvalid says that a response cannot be stored, whenever it is
	// tried. Nothing was done.
	ErrResponseInvalid = errors.New("idem: response cannot be stored")
	// ErrStaleFence says that an attempt was refused because a later holder
	// has been there, or because the attempt is over already.
	ErrStaleFence = errors.New("idem: fence is stale")
	// ErrNewerRecord says that a newer build wrote the record. Nothing was done.
	// Only an instance of such a build can go on with the key, and trying again
	// with this one does not help.
	ErrNewerRecord = errors.New("idem: a newer build wrote this")
	// ErrCorruptRecord says that the key has a record of which nothing can be
	// read. Nothing was done, and trying again does not help.
	ErrCorruptRecord = errors.New("idem: record cannot be read")
)

// unreadable reports whether an error of a store is its last word on a record:
// nothing was done, and the same call has the same answer next time.
func unreadable(err error) bool {
	return errors.Is(err, ErrNewerRecord) || errors.Is(err, ErrCorruptRecord)
}

// Store keeps one [Record] per key ID. It is safe for concurrent use.
//
// Every method is atomic: it takes effect as a whole or not at all, and reads
// made by any process after it returned see it. Every method may be sent
// twice, by a client library or a network, late, and with any other call in
// between: the second one changes nothing that the first did not change, and
// answers as the first did where nothing else happened since. Times and
// expiries are those of the store's own clock, never the caller's.
//
// A context is not to be used any more when the call has returned.
//
// A record that cannot be read hurts only its own key. Get, Issue, Begin, Settle
// and Abort leave it as it is, and their error wraps ErrNewerRecord or
// ErrCorruptRecord. A record of which only the response cannot be read comes
// without it, and with [Record].ResponseErr.
//
// An error other than ErrStoreLost, ErrStaleFence, ErrNewerRecord,
// ErrCorruptRecord and ErrResponseInvalid leaves it open whether the call took
// effect.
//
// Package idemtest has the suite that every Store has to pass.
type Store interface {
	// Get returns the record, or one in StateNone. It reads what the last
	// acknowledged write left, not a replica's view. It returns ErrStoreLost
	// where there is no record and the store is known to have lost some.
	Get(ctx context.Context, id KeyID) (Record, error)

	// Issue makes a record in StateIssued that expires after ttl. A record that
	// exists is returned as it is.
	Issue(ctx context.Context, id KeyID, ttl time.Duration) (Record, error)

	// Begin starts an attempt where the record allows it:
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
	// It returns ErrStaleFence where the record's fence is of the same domain
	// and is above the request's, or equal to it while that attempt is over;
	// ErrStoreLost where the store is known to have lost records. A pending
	// record never expires.
	Begin(ctx context.Context, id KeyID, req BeginRequest) (BeginResult, error)

	// Settle closes the attempt that it names, or marks it unknown, where that
	// attempt is still the stored one and open. With Repair it also repairs a
	// store that has fallen back, as a promoted replica that lagged behind has:
	//
	//	no record                                           written anew
	//	issued, never used                                  replaced
	//	issued or released under a lower fence              replaced
	//	pending or unknown under a lower fence and number   replaced
	//	of another domain, and exactly Repair.Replaced      replaced
	//	anything else                                       as it is: not Settled
	//
	// Lower means lower in the same domain, and the kind has to be the same. So a
	// completed record is never replaced, nor one of an equal or a higher fence.
	// It returns ErrResponseInvalid where the response is more than the store can
	// hold.
	Settle(ctx context.Context, id KeyID, s Settlement) (SettleResult, error)

	// Abort undoes a Begin whose answer never came, and refuses it should it
	// still arrive: a pending record of this very attempt goes back to what it
	// was (released or issued, with the attempt number it had before); where
	// there is no record, or an older one that is issued or released, the
	// fence is left in it. Anything else stays as it is. Where no token was
	// issued there is nothing to leave: its Begin is refused anyway, and a
	// record must not make it valid.
	//
	// A Begin with RunAgainFrom is undone in another way: its attempt becomes unknown,
	// without a response, whether the Begin had arrived or not. So the key stays
	// bound to its request.
	Abort(ctx context.Context, id KeyID, req BeginRequest) error

	// ListOpen lists records whose attempt is open, oldest first, and those that
	// cannot be read and may be open. The work of one call is bounded, whatever
	// it finds: a page may have fewer records than asked for, or none, and there
	// may be more all the same.
	ListOpen(ctx context.Context, q OpenQuery) (OpenPage, error)

	// RetireDomain records that a lock domain is dead for good: that whoever held a
	// lock in it runs no more. It is an operator's word. Retiring twice does
	// nothing. A domain has 1 to 255 bytes.
	RetireDomain(ctx context.Context, domain string, d Decision) error

	// DomainRetired reports whether a lock domain was retired.
	DomainRetired(ctx context.Context, domain string) (bool, error)

	// Ping returns nil when the store can be reached and would accept a Begin.
	Ping(ctx context.Context) error

	// Visibility says who can see the records.
	Visibility() Visibility
}

// BeginRequest is an attempt that wants to start.
type BeginRequest struct {
	Kind        KeyKind
	Route       string // at most 255 bytes
	Fence       Fence
	Nonce       Nonce
	Fingerprint Fingerprint
	// RunAgainFrom, when set, is the open attempt to start over from, without asking what
	// became of it. It is compared whole.
	RunAgainFrom *Attempt
	// KeyTTL is for how long Abort keeps the fence where nothing else is to be
	// kept. Begin ignores it.
	KeyTTL time.Duration
}

// BeginResult is what Begin found or made.
type BeginResult struct {
	Begun    bool     // the request's attempt is pending, as Record.Attempt
	Record   Record   // as it is after the call
	Replaced Replaced // what the attempt that has begun took the place of
}

// Replaced names the record that an attempt took the place of when it began. It
// is zero where there was none.
type Replaced struct {
	State   State
	Attempt Attempt
}

// Settlement closes an attempt or marks it unknown.
type Settlement struct {
	// Attempt is the one to settle, as Begin returned it. It is compared
	// whole: number, fence and nonce.
	Attempt Attempt
	// ID names this settlement, so that the same one sent twice is told from
	// another one that lost the race. The holder uses its attempt's nonce.
	ID Nonce
	// State is StateCompleted, StateReleased or StateUnknown. A released token
	// is issued again, with its old expiry.
	State State
	// Response is what repeats get. Required for StateCompleted, optional for
	// StateUnknown, ignored for StateReleased.
	Response *Response
	// ResultTTL is for how long a completed response is kept.
	ResultTTL time.Duration
	// KeyTTL is for how long a completed or released key is remembered; at
	// least ResultTTL. An unknown one never expires.
	KeyTTL time.Duration
	// Repair, when set, lets Settle repair a record that is missing or older
	// than the attempt. A released token that is missing is not written anew,
	// since its expiry is not known: the settlement stands, and the token stays
	// unknown. A token that was written anew as unknown goes when it is released.
	Repair *Repair
	// LeaseTrusted says that the lease of the attempt proves right now that no later
	// attempt can have begun. Without it a settlement to StateReleased repairs
	// nothing; the others only forbid further attempts.
	LeaseTrusted bool
	// Decision is set by anybody but the holder.
	Decision Decision
}

// Repair is what Settle needs to repair a record: what Begin was given, and what
// it returned.
type Repair struct {
	Kind        KeyKind
	Route       string
	Fingerprint Fingerprint
	Started     time.Time
	Replaced    Replaced
}

// SettleResult is what Settle did or found.
type SettleResult struct {
	Settled  bool   // this settlement stands
	Repaired bool   // it stands in place of a record that was missing or older than its attempt
	Record   Record // as it is after the call; StateNone where there is none
}

// OpenQuery selects open records.
type OpenQuery struct {
	State     State         // StatePending or StateUnknown; StateNone: both. Unreadable ones are in any
	OlderThan time.Duration // since the attempt began, by the store's clock
	After     *OpenCursor   // only what comes after it; nil: from the start
	Limit     int           // at most so many; 0: 1,000
}

// OpenCursor is a place in the order of open records: by the start of the
// attempt, then by key ID.
type OpenCursor struct {
	Started time.Time
	ID      KeyID
}

// Compare is negative where c comes before d, positive where it comes after.
func (c OpenCursor) Compare(d OpenCursor) int {
	if n := c.Started.Compare(d.Started); n != 0 {
		return n
	}
	return bytes.Compare(c.ID[:], d.ID[:])
}

// OpenPage is what one call of Open found.
type OpenPage struct {
	Records []OpenRecord
	// Next is where the listing goes on, as [OpenQuery].After. nil: there is no
	// more.
	Next *OpenCursor
}

// OpenRecord is one row of an open-records listing.
type OpenRecord struct {
	ID     KeyID
	Record Record
	// Err says why the record cannot be read. It wraps ErrNewerRecord or
	// ErrCorruptRecord. The record then has nothing but Started, which is its
	// place.
	Err error
}

// Cursor is the record's place among the open ones.
func (r *OpenRecord) Cursor() OpenCursor { return OpenCursor{Started: r.Record.Started, ID: r.ID} }
