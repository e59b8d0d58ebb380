package redisstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// lua/prelude.lua has the table of the packed record. Every change of the form raises the
// version. A build reads the records of its own version only.
const (
	recordVersion = 2
	headerSize    = 123
)

// Where a response is.
const (
	placeNowhere = iota
	placeInline  // at the end of the record
	placeApart   // in a key of its own
)

// Limits of the layout, in bytes. The limits in package idem are lower or equal.
const (
	maxText   = 255 // domain, route and author
	maxReason = 65535
)

// fields takes the fields of a packed text, one after the other. After the end it
// returns zeros and empty texts.
type fields string

func (f *fields) text(n int) string {
	n = min(n, len(*f))
	text := string((*f)[:n])
	*f = (*f)[n:]
	return text
}

func (f *fields) number(size int) (n uint64) {
	for _, b := range []byte(f.text(size)) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (f *fields) time() time.Time {
	ms := f.number(6)
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

func (f *fields) duration() time.Duration {
	return time.Duration(min(f.number(6), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// unpack reads a packed record, and returns the place of its response and the rest after
// its texts. An empty record is one in StateNone. The error wraps driver.ErrNewerRecord or
// driver.ErrCorruptRecord.
func unpack(data string) (r driver.Record, place byte, rest string, err error) {
	if data == "" {
		return r, placeNowhere, "", nil
	}
	f := fields(data)
	version := f.number(1)
	r.State, r.Kind, place = driver.State(f.number(1)), driver.KeyKind(f.number(1)), byte(f.number(1))
	r.Attempt.Number, r.Attempt.Fence.Token = uint32(f.number(4)), f.number(8)
	copy(r.Attempt.Nonce[:], f.text(16))
	f.text(16) // only the scripts use the settlement's ID
	r.Fingerprint.Version = byte(f.number(1))
	copy(r.Fingerprint.Sum[:], f.text(32))
	r.Created, r.Started, r.Settled = f.time(), f.time(), f.time()
	if r.State.Open() {
		r.ResultTTL, r.KeyTTL = f.duration(), f.duration()
	} else {
		r.ResultExpires, r.KeyExpires = f.time(), f.time()
	}
	r.TokenExpires = f.time()
	domain, route, author, reason := int(f.number(1)), int(f.number(1)), int(f.number(1)), int(f.number(2))
	f.text(1) // only the scripts use the mark of a repair
	if version != recordVersion || len(data) < headerSize || domain+route+author+reason > len(f) ||
		r.State < driver.StateIssued || r.State > driver.StateUnknown || r.Kind > driver.IssuedToken || place > placeApart {
		return driver.Record{}, placeNowhere, "", cannotRead(data)
	}
	r.Attempt.Fence.Domain, r.Route = unpackDomain(f.text(domain)), f.text(route)
	r.Decision = driver.Decision{By: f.text(author), Reason: f.text(reason)}
	return r, place, string(f), nil
}

// cannotRead says why a record cannot be read. It does not show the content.
func cannotRead(data string) error {
	switch {
	case data != "" && data[0] > recordVersion:
		return fmt.Errorf("%w: record of version %d", driver.ErrNewerRecord, data[0])
	case data != "" && data[0] < recordVersion:
		return fmt.Errorf("%w: record of version %d, and this build reads version %d only", driver.ErrCorruptRecord, data[0], recordVersion)
	}
	return fmt.Errorf("%w: %d bytes", driver.ErrCorruptRecord, len(data))
}

// decodeRecord reads a packed record as it is at time now by the server's clock. body is
// the response, if it has a key of its own.
func decodeRecord(data, body string, now time.Time) (driver.Record, error) {
	r, place, rest, err := unpack(data)
	if err != nil {
		return r, err
	}
	return withResponse(atTime(r, now), place, rest, body), nil
}

// decodeValues decodes a record and its response as MGET returns them. The value of a
// missing key is nil.
func decodeValues(record, response any, now time.Time) (driver.Record, error) {
	data, there := record.(string)
	if there && data == "" {
		return driver.Record{}, cannotRead(data)
	}
	body, there := response.(string)
	if there && body == "" {
		body = cutOff
	}
	return decodeRecord(data, body, now)
}

// replacedBy names the record that a packed pending record replaced.
func replacedBy(data string) (driver.Replaced, error) {
	_, _, before, err := unpack(data)
	if err != nil {
		return driver.Replaced{}, err
	}
	r, _, _, err := unpack(before)
	return driver.Replaced{State: r.State, Attempt: r.Attempt}, err
}

// atTime is the record at time now, after its expiries.
func atTime(r driver.Record, now time.Time) driver.Record {
	over := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	switch r.State {
	case driver.StateIssued:
		if over(r.TokenExpires) {
			return driver.Record{}
		}
	case driver.StateCompleted, driver.StateReleased:
		if over(r.KeyExpires) {
			return driver.Record{}
		}
		if over(r.ResultExpires) {
			r.State = driver.StateExpired
		}
	}
	return r
}

// cutOff stands for a response key with an empty value. "" stands for no such key.
const cutOff = "\x00"

// withResponse adds the response to a record that still has one, or the reason why it
// cannot be read.
func withResponse(r driver.Record, place byte, rest, body string) driver.Record {
	if r.State != driver.StateCompleted && r.State != driver.StateUnknown {
		return r
	}
	packed := rest
	switch {
	case place != placeInline && rest != "":
		r.ResponseErr = fmt.Errorf("%w: its record was extended", driver.ErrResponseDamaged)
		return r
	case place == placeNowhere:
		return r
	case place == placeApart && body == "" && r.State == driver.StateCompleted:
		r.State = driver.StateExpired // its key expired between two ticks, or before the clock went back
		return r
	case place == placeApart:
		packed = body
	}
	resp := new(driver.Response)
	if r.ResponseErr = resp.UnmarshalBinary([]byte(packed)); r.ResponseErr == nil {
		r.Response = resp
	}
	return r
}

// packedUUID is in front of a packed UUID. No other domain begins with it, see
// [Store.mayWrite].
const packedUUID = "\x00"

// packDomain returns a lock domain as a record holds it. Nearly all domains begin with a
// UUID, and its 16 bytes take the place of its 36 characters.
func packDomain(domain string) string {
	if len(domain) < uuid.Length {
		return domain
	}
	u, ok := uuid.Parse(domain[:uuid.Length])
	if !ok {
		return domain
	}
	return packedUUID + string(u[:]) + domain[uuid.Length:]
}

// unpackDomain returns the domain for which packDomain returned packed.
func unpackDomain(packed string) string {
	f := fields(packed)
	if f.text(len(packedUUID)) != packedUUID {
		return packed
	}
	var u [16]byte
	copy(u[:], f.text(len(u)))
	return uuid.Text(u) + string(f)
}

// packAttempt returns number, fence and nonce as a record holds them.
func packAttempt(a driver.Attempt) string {
	buf := binary.BigEndian.AppendUint32(make([]byte, 0, 28), a.Number)
	return string(appendBid(buf, a.Fence, a.Nonce))
}

// packBid returns fence and nonce as a record holds them.
func packBid(f driver.Fence, n driver.Nonce) string {
	return string(appendBid(make([]byte, 0, 24), f, n))
}

func appendBid(buf []byte, f driver.Fence, n driver.Nonce) []byte {
	return append(binary.BigEndian.AppendUint64(buf, f.Token), n[:]...)
}

// packFingerprint returns version and sum as a record holds them.
func packFingerprint(f driver.Fingerprint) string {
	return string(append(append(make([]byte, 0, 33), f.Version), f.Sum[:]...))
}

// packTTLs returns the times to live of a result and of a key as an open record holds them.
func packTTLs(result, key time.Duration) string {
	return packMillis(wholeMillis(result)) + packMillis(wholeMillis(key))
}

// packMillis returns a number of 48 bits as a record holds it.
func packMillis(ms int64) string {
	return string(binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(ms))[2:])
}

// packTime returns t in ms as a record holds it, and zeros for the zero time.
func packTime(t time.Time) string {
	if t.UnixMilli() <= 0 {
		return strings.Repeat("\x00", 6)
	}
	return packMillis(t.UnixMilli())
}
