package idem

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// Marker is left by a lock service in place of the lock of a key. It says that an attempt
// began, and how it ended, even if the token store has lost the record. It holds no response.
type Marker struct {
	State       State // StateCompleted or StateUnknown
	Kind        KeyKind
	Route       string // at most 255 bytes
	Attempt     Attempt
	Fingerprint Fingerprint
	Started     time.Time // to the millisecond, by the token store's clock
}

// MarkingLease is a [Lease] of a lock service that can keep markers. Other leases protect keys
// by the token store alone, and so does a locker that was not told to keep markers.
type MarkingLease interface {
	Lease

	// Marker is the marker that was in place of the lock when we took it, or nil.
	Marker() *Marker

	// LeavesMarkers reports whether the locker was told to keep markers. If not, MarkBegun and
	// MarkOnRelease have no effect.
	LeavesMarkers() bool

	// MarkBegun leaves a marker now, before the operation starts, and returns after the
	// acknowledgement. The lease keeps its lock and its fence all the while. After an error the
	// operation must not start. The marker may exist then, and Release removes it after
	// MarkOnRelease(nil). The error wraps ErrLeaseLost if the lease is over, and otherwise
	// ErrUnavailable. Calls for one lease come one after the other. ctx bounds the call alone.
	MarkBegun(ctx context.Context, m Marker) error

	// MarkOnRelease sets the marker for Release to leave in place of the lock. With nil Release
	// leaves nothing. Marker and release are one atomic step. Without a call of MarkOnRelease,
	// Release keeps a marker that was found or left by MarkBegun, and makes no other. The call
	// has no effect after the lease has ended.
	MarkOnRelease(m *Marker)
}

// NewMarker is the marker of a record.
func NewMarker(r *Record) *Marker {
	return &Marker{State: r.State, Kind: r.Kind, Route: r.Route, Attempt: r.Attempt, Fingerprint: r.Fingerprint, Started: r.Started}
}

// Record is the record according to its marker alone, without response and expiries.
func (m *Marker) Record() Record {
	return Record{State: m.State, Kind: m.Kind, Route: m.Route, Attempt: m.Attempt, Fingerprint: m.Fingerprint, Started: m.Started}
}

// SettledBy reports whether a record says how the marked attempt ended. Then the marker of an
// unknown outcome is no longer needed. It is false if the record is missing, open or older than
// the attempt, because a store can fall back.
func (m *Marker) SettledBy(rec *Record) bool {
	switch {
	case rec.State == StateCompleted, rec.State == StateExpired:
		return true
	case rec.State == StateNone, rec.State.Open():
		return false
	}
	return rec.Attempt == m.Attempt || later(rec, m)
}

// markerForm is the binary form of a [Marker], version 1, up to its domain. Numbers are
// big-endian. The domain and the route follow.
type markerForm struct {
	Magic          [3]byte // markerMagic
	Version        uint8
	State          State
	Kind           KeyKind
	Number         uint32
	Token          uint64
	Nonce          Nonce
	Fingerprint    Fingerprint
	Started        int64 // ms since 1970
	LengthOfDomain uint8
}

const markerVersion = 1

var (
	markerMagic = [3]byte{'i', 'd', 'm'}
	errMarker   = errors.New("idem: malformed marker")
)

// AppendBinary appends the binary form to buf. It fails if the domain or the route has more
// than 255 bytes.
func (m *Marker) AppendBinary(buf []byte) ([]byte, error) {
	a := &m.Attempt
	if len(a.Fence.Domain) > 255 || len(m.Route) > 255 {
		return nil, errMarker
	}
	buf, err := binary.Append(buf, binary.BigEndian, markerForm{markerMagic, markerVersion, m.State, m.Kind, a.Number, a.Fence.Token, a.Nonce,
		m.Fingerprint, m.Started.UnixMilli(), uint8(len(a.Fence.Domain))})
	return append(append(buf, a.Fence.Domain...), m.Route...), err
}

// UnmarshalBinary reads the form made by AppendBinary. It returns an error for any other
// data, and leaves m as it was.
func (m *Marker) UnmarshalBinary(data []byte) error {
	var f markerForm
	n, err := binary.Decode(data, binary.BigEndian, &f)
	if err != nil || f.Magic != markerMagic || f.Version != markerVersion || f.State != StateCompleted && f.State != StateUnknown || f.Kind > IssuedToken {
		return errMarker
	}
	text, domain := string(data[n:]), int(f.LengthOfDomain)
	if domain > len(text) || len(text)-domain > 255 {
		return errMarker
	}
	*m = Marker{State: f.State, Kind: f.Kind, Route: text[domain:], Fingerprint: f.Fingerprint, Started: time.UnixMilli(f.Started).UTC(),
		Attempt: Attempt{Number: f.Number, Fence: Fence{Domain: text[:domain], Token: f.Token}, Nonce: f.Nonce}}
	return nil
}
