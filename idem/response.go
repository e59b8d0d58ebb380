package idem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
)

// Response is the outcome of an execution as a transport stores and replays
// it. It is not changed after it was handed to the engine.
type Response struct {
	// Status is the HTTP status, the gRPC code, or what the caller of
	// [Engine.Do] makes of it.
	Status int
	// Header and Trailer hold what is replayed beside the body: only names on
	// the allow-list, all values of each, in order.
	Header  map[string][]string
	Trailer map[string][]string
	// Body is the answer's body, exactly as it was sent.
	Body []byte
	// Omitted says that the body could not be kept: it was streamed, hijacked
	// or over the limit. Such a result cannot be replayed.
	Omitted bool
}

// size is about how many bytes a store keeps of r, beside a few for lengths.
func (r *Response) size() int64 {
	return int64(fieldsSize(r.Header) + fieldsSize(r.Trailer) + len(r.Body))
}

// The binary form of a [Response], version 1. Length and checksum are
// big-endian. Other lengths, counts and the status are varints in their
// shortest form, the status zigzag-coded:
//
//	version (1 byte) | flags (1 byte) | length (4 bytes) | checksum (4 bytes) | content
//	content: status | header | trailer | body
//	header, trailer: count { length name | count { length value } }
//
// Names are in ascending order and the body takes what is left, so that equal
// responses have equal bytes, and a response has one form only.
//
// The length is that of the content. The checksum is the CRC-32C of all other
// bytes, the first six included. It finds every change of up to 32 adjacent
// bits, and the length finds what was cut off or added. Later versions keep the
// first ten bytes, so that an older build can tell a newer form from a damaged
// one.
const (
	responseVersion = 1
	responseOmitted = 1 << 0 // flag: the body could not be kept

	responseLength   = 2 // where the length is
	responseChecksum = 6 // where the checksum is
	responseContent  = 10

	// maxResponseValues bounds names and values in header and trailer, each.
	maxResponseValues = 4096
)

// ErrResponseDamaged says that a stored response is not as it was written: it was
// cut off, extended or changed.
var ErrResponseDamaged = errors.New("idem: stored response is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is that of a whole binary form.
func checksum(data []byte) uint32 {
	return crc32.Update(crc32.Checksum(data[:responseChecksum], castagnoli), castagnoli, data[responseContent:])
}

// AppendBinary appends the binary form to buf. The error wraps
// [ErrResponseInvalid]: header or trailer hold more than 4,096 names or values,
// or the response has 4 GiB or more.
func (r *Response) AppendBinary(buf []byte) ([]byte, error) {
	flags := byte(0)
	if r.Omitted {
		flags |= responseOmitted
	}
	start := len(buf)
	buf = slices.Grow(buf, responseContent+binary.MaxVarintLen32+fieldsSize(r.Header)+fieldsSize(r.Trailer)+len(r.Body))
	buf = append(buf, responseVersion, flags, 0, 0, 0, 0, 0, 0, 0, 0)
	buf = binary.AppendVarint(buf, int64(r.Status))
	var err error
	if buf, err = appendFields(buf, r.Header); err != nil {
		return nil, err
	}
	if buf, err = appendFields(buf, r.Trailer); err != nil {
		return nil, err
	}
	buf = append(buf, r.Body...)
	form := buf[start:]
	size := len(form) - responseContent
	if uint64(size) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrResponseInvalid, size)
	}
	binary.BigEndian.PutUint32(form[responseLength:], uint32(size))
	binary.BigEndian.PutUint32(form[responseChecksum:], checksum(form))
	return buf, nil
}

// fieldsSize is about how many bytes fields take, so that the buffer grows once.
func fieldsSize(fields map[string][]string) int {
	n := 1
	for name, vs := range fields {
		n += 2 + len(name)
		for _, v := range vs {
			n += 2 + len(v)
		}
	}
	return n
}

func appendFields(buf []byte, fields map[string][]string) ([]byte, error) {
	if len(fields) == 0 {
		return append(buf, 0), nil
	}
	return appendSome(buf, fields)
}

// appendSome is apart because its frame is large; see request.
func appendSome(buf []byte, fields map[string][]string) ([]byte, error) {
	var room [8]string // enough for the allow-list, without an allocation
	names, values := room[:0], 0
	for name, vs := range fields {
		names = append(names, name)
		values += len(vs)
	}
	if len(names) > maxResponseValues || values > maxResponseValues {
		return nil, fmt.Errorf("%w: %d fields and %d values, at most %d", ErrResponseInvalid, len(names), values, maxResponseValues)
	}
	slices.Sort(names)
	buf = binary.AppendUvarint(buf, uint64(len(names)))
	for _, name := range names {
		buf = appendText(buf, name)
		buf = binary.AppendUvarint(buf, uint64(len(fields[name])))
		for _, v := range fields[name] {
			buf = appendText(buf, v)
		}
	}
	return buf, nil
}

func appendText(buf []byte, s string) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(s)))
	return append(buf, s...)
}

// UnmarshalBinary sets r to what [Response.AppendBinary] wrote. It keeps no
// reference to data, allocates in proportion to it at most, and accepts
// nothing that AppendBinary would not have written. Empty maps and bodies come
// back as nil. The error wraps [ErrNewerRecord] where a newer build wrote the
// response, and else [ErrResponseDamaged]; r is as it was then.
func (r *Response) UnmarshalBinary(data []byte) error {
	switch {
	case len(data) < responseContent:
		return fmt.Errorf("%w: it has %d bytes", ErrResponseDamaged, len(data))
	case uint64(binary.BigEndian.Uint32(data[responseLength:])) != uint64(len(data)-responseContent):
		return fmt.Errorf("%w: it has %d bytes in place of %d", ErrResponseDamaged,
			len(data)-responseContent, binary.BigEndian.Uint32(data[responseLength:]))
	case binary.BigEndian.Uint32(data[responseChecksum:]) != checksum(data):
		return fmt.Errorf("%w: its checksum differs", ErrResponseDamaged)
	case data[0] > responseVersion:
		return fmt.Errorf("%w: response of version %d", ErrNewerRecord, data[0])
	case data[0] != responseVersion || data[1]&^responseOmitted != 0:
		return fmt.Errorf("%w: it is malformed", ErrResponseDamaged)
	}
	d := decoder{rest: data[responseContent:]}
	out := Response{Omitted: data[1]&responseOmitted != 0}
	out.Status = int(d.varint())
	out.Header = d.fields()
	out.Trailer = d.fields()
	if d.bad {
		return fmt.Errorf("%w: it is malformed", ErrResponseDamaged)
	}
	if len(d.rest) > 0 {
		out.Body = append([]byte(nil), d.rest...)
	}
	*r = out
	return nil
}

// decoder reads from rest. After the first fault bad is set and everything it
// returns is empty.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 { // cut off, too long, or not the shortest form
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// varint undoes the zigzag coding of [binary.AppendVarint].
func (d *decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) text() string {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

// count reads a number of things that take at least size bytes each, no more
// of them than left allows.
func (d *decoder) count(size, left int) int {
	n := d.uvarint()
	if n > uint64(len(d.rest)/size) || n > uint64(left) {
		d.bad, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) fields() map[string][]string {
	names := d.count(2, maxResponseValues)
	if names == 0 {
		return nil
	}
	fields := make(map[string][]string, names)
	left, last := maxResponseValues, ""
	for i := range names {
		name := d.text()
		if d.bad || i > 0 && name <= last {
			d.bad, d.rest = true, nil
			return nil
		}
		last = name
		var values []string
		if n := d.count(1, left); n > 0 {
			left -= n
			values = make([]string, n)
			for j := range values {
				values[j] = d.text()
			}
		}
		fields[name] = values
	}
	return fields
}
