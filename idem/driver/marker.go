package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// Before reports whether a record is of a later attempt than the marker. A fence does not show this
// alone. An Abort leaves its fence in any record without an attempt, and that record may be from a
// time before the marker, because a store can fall back.
func (m *Marker) Before(rec *Record) bool {
	a, b := rec.Attempt, m.Attempt
	return a.Number > b.Number && (a.Fence.Domain != b.Fence.Domain || b.Fence.Before(a.Fence))
}

// Marker is left by a lock service in place of the lock of a key. It says that an attempt
// began, and how it ended, even if the token store has lost the record. It holds no response.
type Marker struct {
	State       State // StateCompleted or StateUnknown
	Kind        KeyKind
	Route       string // at most 255 bytes
	Attempt     Attempt
	Fingerprint Fingerprint
	Started     time.Time // to the millisecond, by the token store's clock
	// ResultTTL and KeyTTL are those of the record, to the second, rounded up. They are zero if
	// an earlier version left the marker.
	ResultTTL, KeyTTL time.Duration
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

// NewMarker is the marker of a record. A completed record has ends in place of times to live.
func NewMarker(r *Record) *Marker {
	m := &Marker{State: r.State, Kind: r.Kind, Route: r.Route, Attempt: r.Attempt, Fingerprint: r.Fingerprint, Started: r.Started,
		ResultTTL: wholeSeconds(r.ResultTTL), KeyTTL: wholeSeconds(r.KeyTTL)}
	if !r.KeyExpires.IsZero() && !r.State.Open() {
		m.ResultTTL, m.KeyTTL = wholeSeconds(r.ResultExpires.Sub(r.Settled)), wholeSeconds(r.KeyExpires.Sub(r.Settled))
	}
	return m
}

// wholeSeconds rounds up to what the binary form of a marker can hold.
func wholeSeconds(d time.Duration) time.Duration {
	return min((max(d, 0) + time.Second - 1).Truncate(time.Second), math.MaxUint32*time.Second)
}

// Record is the record according to its marker alone, without response and expiries.
func (m *Marker) Record() Record {
	return Record{State: m.State, Kind: m.Kind, Route: m.Route, Attempt: m.Attempt, Fingerprint: m.Fingerprint, Started: m.Started,
		ResultTTL: m.ResultTTL, KeyTTL: m.KeyTTL}
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
	return rec.Attempt == m.Attempt || m.Before(rec)
}

// markerForm is the binary form of a [Marker] up to its domain. Numbers are big-endian. The
// domain and the route follow. In version 2 a markerTimes comes before them. A marker without
// times has version 1.
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

// markerTimes are the times to live of a [Marker] in seconds.
type markerTimes struct{ Result, Key uint32 }

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
	form := markerForm{markerMagic, 1, m.State, m.Kind, a.Number, a.Fence.Token, a.Nonce, m.Fingerprint, m.Started.UnixMilli(), uint8(len(a.Fence.Domain))}
	times := markerTimes{uint32(wholeSeconds(m.ResultTTL) / time.Second), uint32(wholeSeconds(m.KeyTTL) / time.Second)}
	if times != (markerTimes{}) {
		form.Version = 2
	}
	buf, err := binary.Append(buf, binary.BigEndian, form)
	if err == nil && form.Version == 2 {
		buf, err = binary.Append(buf, binary.BigEndian, times)
	}
	return append(append(buf, a.Fence.Domain...), m.Route...), err
}

// UnmarshalBinary reads the form made by AppendBinary. It returns an error for any other
// data, and leaves m as it was.
func (m *Marker) UnmarshalBinary(data []byte) error {
	var f markerForm
	n, err := binary.Decode(data, binary.BigEndian, &f)
	if err != nil || f.Magic != markerMagic || f.State != StateCompleted && f.State != StateUnknown || f.Kind > IssuedToken {
		return errMarker
	}
	var times markerTimes
	switch f.Version {
	case 1:
	case 2:
		more, err := binary.Decode(data[n:], binary.BigEndian, &times)
		if err != nil || times == (markerTimes{}) {
			return errMarker
		}
		n += more
	default:
		return errMarker
	}
	text, domain := string(data[n:]), int(f.LengthOfDomain)
	if domain > len(text) || len(text)-domain > 255 {
		return errMarker
	}
	*m = Marker{State: f.State, Kind: f.Kind, Route: text[domain:], Fingerprint: f.Fingerprint, Started: time.UnixMilli(f.Started).UTC(),
		Attempt:   Attempt{Number: f.Number, Fence: Fence{Domain: text[:domain], Token: f.Token}, Nonce: f.Nonce},
		ResultTTL: time.Duration(times.Result) * time.Second, KeyTTL: time.Duration(times.Key) * time.Second}
	return nil
}
