package redisstore

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The packed record. lua/prelude.lua has the table with the positions of the scripts,
// which count from 1.
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
	atLengths       = 117 // of domain, route and author; two bytes for the reason
	headerSize      = 123 // only the scripts use the last byte, which marks a repair
)

// Where a response is.
const (
	placeNowhere = iota
	placeInline  // at the end of the record
	placeApart   // in a key of its own
)

// Limits of the layout. The limits in package idem are lower or equal.
const (
	maxDomain = 255
	maxRoute  = 255
	maxAuthor = 255
	maxReason = 65535
)

// cannotRead says why a record cannot be read. It does not show the content.
func cannotRead(data string) error {
	if data != "" && data[0] > recordVersion {
		return fmt.Errorf("%w: record of version %d", idem.ErrNewerRecord, data[0])
	}
	return fmt.Errorf("%w: %d bytes", idem.ErrCorruptRecord, len(data))
}

// decodeRecord reads a packed record as it is at time now by the server's clock. body is
// the response, if it has a key of its own. An empty record is one in StateNone. The
// error wraps idem.ErrNewerRecord or idem.ErrCorruptRecord.
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
	texts, rest, whole := textsOf(data)
	if !whole || r.State < idem.StateIssued || r.State > idem.StateUnknown || r.Kind > idem.IssuedToken || data[atPlace] > placeApart {
		return idem.Record{}, cannotRead(data)
	}
	r.Attempt.Number = binary.BigEndian.Uint32([]byte(data[atNumber:atToken]))
	r.Attempt.Fence.Token = binary.BigEndian.Uint64([]byte(data[atToken:atNonce]))
	copy(r.Attempt.Nonce[:], data[atNonce:])
	r.Fingerprint.Version = data[atFingerprint]
	copy(r.Fingerprint.Sum[:], data[atFingerprint+1:])
	r.Attempt.Fence.Domain, r.Route, r.Decision.By, r.Decision.Reason = texts[0], texts[1], texts[2], texts[3]
	return withResponse(atTime(r, now), data[atPlace], rest, body), nil
}

// textsOf returns domain, route, author and reason, and the rest of the record. The
// record is not whole if a text is cut off.
func textsOf(data string) (texts [4]string, rest string, whole bool) {
	n := data[atLengths:]
	rest = data[headerSize:]
	for i, length := range [...]int{int(n[0]), int(n[1]), int(n[2]), int(n[3])<<8 | int(n[4])} {
		if length > len(rest) {
			return texts, "", false
		}
		texts[i], rest = rest[:length], rest[length:]
	}
	return texts, rest, true
}

// replacedBy names the record that a packed pending record replaced.
func replacedBy(data string) (idem.Replaced, error) {
	_, before, _ := textsOf(data)
	r, err := decodeRecord(before, "", time.Time{})
	return idem.Replaced{State: r.State, Attempt: r.Attempt}, err
}

// atTime is the record at time now, after its expiries.
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

// cutOff stands for a response key with an empty value. "" stands for no such key.
const cutOff = "\x00"

// withResponse adds the response to a record that still has one, or the reason why it
// cannot be read.
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
		r.State = idem.StateExpired // its key expired between two ticks, or before the clock went back
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
	return string(binary.BigEndian.AppendUint32(nil, a.Number)) + packBid(a.Fence, a.Nonce)
}

// packBid returns fence and nonce as a record holds them.
func packBid(f idem.Fence, n idem.Nonce) string {
	return string(append(binary.BigEndian.AppendUint64(nil, f.Token), n[:]...))
}

// packFingerprint returns version and sum as a record holds them.
func packFingerprint(f idem.Fingerprint) string {
	return string(append([]byte{f.Version}, f.Sum[:]...))
}

// packTime returns t in ms as a record holds it, and zeros for the zero time.
func packTime(t time.Time) string {
	if t.IsZero() || t.UnixMilli() <= 0 {
		return strings.Repeat("\x00", 6)
	}
	return string(binary.BigEndian.AppendUint64(nil, uint64(t.UnixMilli()))[2:])
}

func getTime(s string) time.Time {
	ms := binary.BigEndian.Uint64([]byte("\x00\x00" + s[:6]))
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}
