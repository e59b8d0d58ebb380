package redisstore

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The packed record. The table with the scripts' positions, which count from 1,
// is in lua/prelude.lua.
const (
	recordVersion = 1

	atState         = 1
	atKind          = 2
	atPlace         = 3
	atNumber        = 4
	atToken         = 8
	atNonce         = 16
	atFingerprint   = 48
	atCreated       = 81
	atStarted       = 87
	atSettled       = 93
	atResultExpires = 99
	atKeyExpires    = 105
	atTokenExpires  = 111
	atLengths       = 117 // of domain, route, author; two bytes for the reason
	headerSize      = 123 // the last byte, which tells a repair, is the scripts' alone
)

// Where a response is kept.
const (
	placeNowhere = iota
	placeInline  // behind the record
	placeApart   // in a key of its own
)

// Limits of the layout, which idem's contracts are within.
const (
	maxDomain = 255
	maxRoute  = 255
	maxAuthor = 255
	maxReason = 65535
)

// cannotRead says why a record cannot be read.
func cannotRead(data string) error {
	if data != "" && data[0] > recordVersion {
		return fmt.Errorf("%w: record of version %d", idem.ErrNewerRecord, data[0])
	}
	return fmt.Errorf("%w: %d bytes", idem.ErrCorruptRecord, len(data)) // not what they hold
}

// decodeRecord reads a packed record as it is at time now by the server's clock.
// body is the response where that is kept apart. An empty record is one in
// StateNone. The error wraps idem.ErrNewerRecord or idem.ErrCorruptRecord.
func decodeRecord(data, body string, now time.Time) (idem.Record, error) {
	if data == "" {
		return idem.Record{}, nil
	}
	if len(data) < headerSize || data[0] != recordVersion {
		return idem.Record{}, cannotRead(data)
	}
	r := idem.Record{
		State:         idem.State(data[atState]),
		Kind:          idem.KeyKind(data[atKind]),
		Created:       getTime(data[atCreated:]),
		Started:       getTime(data[atStarted:]),
		Settled:       getTime(data[atSettled:]),
		ResultExpires: getTime(data[atResultExpires:]),
		KeyExpires:    getTime(data[atKeyExpires:]),
		TokenExpires:  getTime(data[atTokenExpires:]),
	}
	if r.State < idem.StateIssued || r.State > idem.StateUnknown || r.Kind > idem.IssuedToken || data[atPlace] > placeApart {
		return idem.Record{}, cannotRead(data)
	}
	r.Attempt.Number = binary.BigEndian.Uint32([]byte(data[atNumber:atToken]))
	r.Attempt.Fence.Token = binary.BigEndian.Uint64([]byte(data[atToken:atNonce]))
	copy(r.Attempt.Nonce[:], data[atNonce:])
	r.Fingerprint.Version = data[atFingerprint]
	copy(r.Fingerprint.Sum[:], data[atFingerprint+1:])

	rest := data[headerSize:]
	take := func(n int) string {
		if n > len(rest) {
			rest, r.State = "", idem.StateNone
			return ""
		}
		s := rest[:n]
		rest = rest[n:]
		return s
	}
	lengths := lengthsOf(data)
	r.Attempt.Fence.Domain = take(lengths[0])
	r.Route = take(lengths[1])
	r.Decision.By = take(lengths[2])
	r.Decision.Reason = take(lengths[3])
	if r.State == idem.StateNone {
		return idem.Record{}, cannotRead(data)
	}
	return withResponse(atTime(r, now), data[atPlace], rest, body), nil
}

// replacedBy names the record that a packed pending one replaced.
func replacedBy(data string) (idem.Replaced, error) {
	rest := data[headerSize:]
	for _, n := range lengthsOf(data) {
		rest = rest[min(n, len(rest)):]
	}
	if rest == "" {
		return idem.Replaced{}, nil
	}
	r, err := decodeRecord(rest, "", time.Time{})
	return idem.Replaced{State: r.State, Attempt: r.Attempt}, err
}

// lengthsOf are those of domain, route, author and reason.
func lengthsOf(data string) [4]int {
	n := data[atLengths:]
	return [...]int{int(n[0]), int(n[1]), int(n[2]), int(n[3])<<8 | int(n[4])}
}

// atTime is what has become of r at time now.
func atTime(r idem.Record, now time.Time) idem.Record {
	over := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	switch r.State {
	case idem.StateIssued:
		if over(r.TokenExpires) {
			return idem.Record{}
		}
	case idem.StateCompleted, idem.StateReleased:
		if over(r.KeyExpires) {
			return idem.Record{}
		}
		if over(r.ResultExpires) {
			r.State = idem.StateExpired
		}
	}
	return r
}

// cutOff stands for a response that is there and empty, since "" stands for none.
const cutOff = "\x00"

// withResponse adds the response to a record that still has one, or why it cannot
// be read.
func withResponse(r idem.Record, place byte, rest, body string) idem.Record {
	if r.State != idem.StateCompleted && r.State != idem.StateUnknown {
		return r
	}
	packed := rest
	switch {
	case place != placeInline && rest != "":
		r.ResponseErr = fmt.Errorf("%w: its record was extended", idem.ErrResponseDamaged)
		return r
	case place == placeNowhere:
		return r
	case place == placeApart && body == "" && r.State == idem.StateCompleted:
		r.State = idem.StateExpired // its key has gone: ahead of the clock's next tick, or of a clock that went back
		return r
	case place == placeApart:
		packed = body
	}
	resp := new(idem.Response)
	if r.ResponseErr = resp.UnmarshalBinary([]byte(packed)); r.ResponseErr == nil {
		r.Response = resp
	}
	return r
}

// packAttempt returns number, fence and nonce as a record holds them.
func packAttempt(a idem.Attempt) string {
	buf := make([]byte, 0, 28)
	buf = binary.BigEndian.AppendUint32(buf, a.Number)
	return string(appendBid(buf, a.Fence, a.Nonce))
}

// packBid returns fence and nonce as a record holds them.
func packBid(f idem.Fence, n idem.Nonce) string {
	return string(appendBid(make([]byte, 0, 24), f, n))
}

func appendBid(buf []byte, f idem.Fence, n idem.Nonce) []byte {
	return append(binary.BigEndian.AppendUint64(buf, f.Token), n[:]...)
}

// packFingerprint returns version and sum as a record holds them.
func packFingerprint(f idem.Fingerprint) string {
	buf := make([]byte, 0, 33)
	return string(append(append(buf, f.Version), f.Sum[:]...))
}

// packTime returns t in ms as a record holds it; zero for the zero time.
func packTime(t time.Time) string {
	if t.IsZero() || t.UnixMilli() <= 0 {
		return "\x00\x00\x00\x00\x00\x00"
	}
	var buf [8]byte
	binary.BigEndian.PutUint64(buf[:], uint64(t.UnixMilli()))
	return string(buf[2:])
}

func getTime(s string) time.Time {
	ms := int64(s[0])<<40 | int64(s[1])<<32 | int64(s[2])<<24 | int64(s[3])<<16 | int64(s[4])<<8 | int64(s[5])
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
