package idem

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// Marker is what a lock service can leave in place of a key's lock. It says by
// itself that an attempt was begun, and how that ended, also where the token
// store has lost the record. It holds no response.
type Marker struct {
	State       State // StateCompleted or StateUnknown
	Kind        KeyKind
	Route       string // at most 255 bytes
	Attempt     Attempt
	Fingerprint Fingerprint
	Started     time.Time // to the millisecond, by the token store's clock
}

// MarkingLease is a [Lease] of a lock service that can keep markers. With a
// lease that is none, or where its locker was not told to keep markers, keys are
// protected by the token store alone.
type MarkingLease interface {
	Lease

	// Marker is what was found in place of the lock when it was taken; nil
	// where there was nothing.
	Marker() *Marker

	// MarkBegun leaves a marker now, before the operation starts, and returns
	// once that is acknowledged. The lock is held all the while, with the same
	// fence. After an error the operation must not start: the marker may be
	// there or not, and Release removes it where MarkOnRelease(nil) says so. The error
	// wraps ErrLeaseLost where the lease is over and ErrUnavailable otherwise.
	// Calls for one lease come one after the other. ctx bounds the call alone.
	MarkBegun(ctx context.Context, m Marker) error

	// MarkOnRelease sets what Release is to leave in place of the lock: a marker, or
	// with nil nothing. It is one atomic step with the release. Without a call
	// of MarkOnRelease a marker that was found, or was left by MarkBegun, stays, and none
	// is left where there was none. It has no effect once the lease has ended.
	MarkOnRelease(m *Marker)
}

// NewMarker is what a settled record leaves.
func NewMarker(r *Record) *Marker {
	return &Marker{State: r.State, Kind: r.Kind, Route: r.Route, Attempt: r.Attempt, Fingerprint: r.Fingerprint, Started: r.Started}
}

// Record is what can be told of a key by its marker alone: without response
// and without expiries.
func (m *Marker) Record() Record {
	return Record{State: m.State, Kind: m.Kind, Route: m.Route, Attempt: m.Attempt, Fingerprint: m.Fingerprint, Started: m.Started}
}

// SettledBy reports whether a record says how the marked attempt ended, so that
// nobody needs the marker of an unknown outcome any more. It is false where the
// record is missing, open, or what was there before the attempt: a store can fall
// back.
func (m *Marker) SettledBy(rec *Record) bool {
	switch {
	case rec.State == StateCompleted, rec.State == StateExpired:
		return true
	case rec.State == StateNone, rec.State.Open():
		return false
	}
	return rec.Attempt == m.Attempt || later(rec, m)
}

// The binary form of a [Marker], version 1, numbers big-endian:
//
//	magic "idm" | version | state | kind | attempt number (4) | fence token (8) | nonce (16)
//	| fingerprint version (1) | fingerprint (32) | started, ms since 1970 (8)
//	| length domain (1) | domain | route
const (
	markerMagic   = "idm"
	markerVersion = 1
	markerFixed   = len(markerMagic) + 1 + 1 + 1 + 4 + 8 + 16 + 1 + 32 + 8 + 1
)

var errMarker = errors.New("idem: malformed marker")

// AppendBinary appends the binary form to buf. It fails where domain or route
// have more than 255 bytes.
func (m *Marker) AppendBinary(buf []byte) ([]byte, error) {
	a := &m.Attempt
	if len(a.Fence.Domain) > 255 || len(m.Route) > 255 {
		return nil, errMarker
	}
	buf = append(buf, markerMagic...)
	buf = append(buf, markerVersion, byte(m.State), byte(m.Kind))
	buf = binary.BigEndian.AppendUint32(buf, a.Number)
	buf = binary.BigEndian.AppendUint64(buf, a.Fence.Token)
	buf = append(buf, a.Nonce[:]...)
	buf = append(buf, m.Fingerprint.Version)
	buf = append(buf, m.Fingerprint.Sum[:]...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(m.Started.UnixMilli()))
	buf = append(buf, byte(len(a.Fence.Domain)))
	buf = append(buf, a.Fence.Domain...)
	return append(buf, m.Route...), nil
}

// UnmarshalBinary reads what AppendBinary wrote. Anything else is an error,
// and leaves m as it was.
func (m *Marker) UnmarshalBinary(data []byte) error {
	if len(data) < markerFixed || string(data[:len(markerMagic)]) != markerMagic || data[len(markerMagic)] != markerVersion {
		return errMarker
	}
	data = data[len(markerMagic)+1:]
	next := func(n int) []byte {
		part := data[:n]
		data = data[n:]
		return part
	}
	var r Marker
	head := next(2)
	r.State, r.Kind = State(head[0]), KeyKind(head[1])
	r.Attempt.Number = binary.BigEndian.Uint32(next(4))
	r.Attempt.Fence.Token = binary.BigEndian.Uint64(next(8))
	copy(r.Attempt.Nonce[:], next(len(r.Attempt.Nonce)))
	r.Fingerprint.Version = next(1)[0]
	copy(r.Fingerprint.Sum[:], next(len(r.Fingerprint.Sum)))
	r.Started = time.UnixMilli(int64(binary.BigEndian.Uint64(next(8)))).UTC()
	domain := int(next(1)[0])
	if domain > len(data) || len(data)-domain > 255 || r.State != StateCompleted && r.State != StateUnknown || r.Kind > IssuedToken {
		return errMarker
	}
	r.Attempt.Fence.Domain, r.Route = string(next(domain)), string(data)
	*m = r
	return nil
}
