package memorystore

import (
	"encoding/binary"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Closed records are what a store holds most of, for a day and more. Each is
// bytes without pointers, side by side with others in a page, which the garbage
// collector need not look into: a live heap of a million records of pointers
// would make every allocation of the process dearer.
//
//	state, kind, fingerprint version | fingerprint | settlement | nonce |
//	attempt | fence | times | domain, route, by, reason | response
//
// Numbers are varints, times are relative to a base and follow a byte of bits
// that says which of them are not zero, texts follow their lengths. The response
// is what is left, if anything. The highest of the bits says that the settlement
// was a repair.

// setRepaired is that bit.
const setRepaired = 1 << 7

// packedSize is the most that a closed entry takes.
func (e *entry) packedSize(response []byte) int {
	r := &e.record
	a, d := &r.Attempt, &r.Decision
	return 3 + len(r.Fingerprint.Sum) + len(e.settlement) + len(a.Nonce) + 15 + 1 + 6*10 +
		4*3 + len(a.Fence.Domain) + len(r.Route) + len(d.By) + len(d.Reason) + len(response)
}

// pack appends the bytes of a closed entry.
func (e *entry) pack(buf []byte, base time.Time, response []byte) []byte {
	r := &e.record
	a, d := &r.Attempt, &r.Decision
	buf = append(buf, byte(r.State), byte(r.Kind), r.Fingerprint.Version)
	buf = append(buf, r.Fingerprint.Sum[:]...)
	buf = append(buf, e.settlement[:]...)
	buf = append(buf, a.Nonce[:]...)
	buf = binary.AppendUvarint(buf, uint64(a.Number))
	buf = binary.AppendUvarint(buf, a.Fence.Token)
	set := len(buf) // which of the times are
	buf = append(buf, 0)
	if e.repaired {
		buf[set] |= setRepaired
	}
	for i, t := range timesOf(r) {
		if !t.IsZero() {
			buf[set] |= 1 << i
			buf = binary.AppendVarint(buf, int64(t.Sub(base)))
		}
	}
	for _, text := range [...]string{a.Fence.Domain, r.Route, d.By, d.Reason} {
		buf = binary.AppendUvarint(buf, uint64(len(text)))
		buf = append(buf, text...)
	}
	return append(buf, response...)
}

// unpack returns what pack was given.
func unpack(buf []byte, base time.Time) *entry {
	u := unpacker{buf}
	e := &entry{}
	r := &e.record
	head := u.bytes(3)
	r.State, r.Kind, r.Fingerprint.Version = idem.State(head[0]), idem.KeyKind(head[1]), head[2]
	copy(r.Fingerprint.Sum[:], u.bytes(len(r.Fingerprint.Sum)))
	copy(e.settlement[:], u.bytes(len(e.settlement)))
	copy(r.Attempt.Nonce[:], u.bytes(len(r.Attempt.Nonce)))
	r.Attempt.Number = uint32(u.uvarint())
	r.Attempt.Fence.Token = u.uvarint()
	set := u.bytes(1)[0]
	e.repaired = set&setRepaired != 0
	for i, t := range timesOf(r) {
		if set&(1<<i) != 0 {
			*t = base.Add(time.Duration(u.varint()))
		}
	}
	for _, text := range [...]*string{&r.Attempt.Fence.Domain, &r.Route, &r.Decision.By, &r.Decision.Reason} {
		*text = string(u.bytes(int(u.uvarint())))
	}
	if len(u.rest) > 0 {
		r.Response = new(idem.Response)
		if err := r.Response.UnmarshalBinary(u.rest); err != nil {
			panic("tokenstore/memory: a response that was packed here cannot be read: " + err.Error())
		}
	}
	return e
}

// normal returns t as it will be when it has been packed: by its distance to the
// base, which the monotonic clock measures.
func (sh *shard) normal(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return sh.base.Add(t.Sub(sh.base))
}

// timesOf are the times of a record, in the order in which they are packed.
func timesOf(r *idem.Record) [6]*time.Time {
	return [...]*time.Time{&r.Created, &r.Started, &r.Settled, &r.ResultExpires, &r.KeyExpires, &r.TokenExpires}
}

// unpacker takes packed bytes apart.
type unpacker struct{ rest []byte }

func (u *unpacker) bytes(n int) []byte {
	b := u.rest[:n]
	u.rest = u.rest[n:]
	return b
}

func (u *unpacker) uvarint() uint64 {
	v, n := binary.Uvarint(u.rest)
	u.rest = u.rest[n:]
	return v
}

func (u *unpacker) varint() int64 {
	v, n := binary.Varint(u.rest)
	u.rest = u.rest[n:]
	return v
}
