package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
)

// Response is the outcome of an execution as a transport stores and replays it. Do not
// change it after the engine has it.
type Response struct {
	// Status is the HTTP status or the gRPC code. A caller of idem.Engine.Do gives it a meaning
	// of its own.
	Status int
	// Header and Trailer hold the fields that are replayed with the body. They have only
	// names on the allow-list, and all values of each in their order.
	Header  map[string][]string
	Trailer map[string][]string
	// Body is the body of the answer, exactly as it was sent.
	Body []byte
	// Omitted says that the body could not be kept, because it was streamed, hijacked or
	// over the limit. Such a result cannot be replayed.
	Omitted bool
	// Span is that of the execution, if a telemetry.Recorder records it. The engine sets it, and a
	// replay is linked to it.
	Span Span
}

// Size is about how many bytes a store keeps of r.
func (r *Response) Size() int64 {
	n := len(r.Body)
	for _, fields := range []map[string][]string{r.Header, r.Trailer} {
		for name, values := range fields {
			n += 2 + len(name)
			for _, v := range values {
				n += 2 + len(v)
			}
		}
	}
	return int64(n)
}

// The binary form of a [Response], version 2. Length and checksum are big-endian. Other
// lengths, counts and the status are varints in their shortest form, and the status is
// zigzag-coded.
//
//	version (1 byte) | flags (1 byte) | length (4 bytes) | checksum (4 bytes) | content
//	content: span | status | header | trailer | body
//	span: trace ID (16 bytes) | span ID (8 bytes), with the flag for a span only
//	header, trailer: count { length name | count { length value } }
//
// Names are in ascending order, and the body is the rest of the content. So a response has
// exactly one form.
//
// The length is that of the content. The checksum is the CRC-32C of all other bytes,
// including the first six. It finds every change within 32 adjacent bits, and the length
// finds a form that was cut off or extended.
//
// Every change of the form raises the version, and so does a new flag. Later versions keep the
// first ten bytes, so an older build can tell a newer form from a damaged one. A build reads the
// form of its own version only.
const (
	responseVersion = 2
	responseOmitted = 1 << 0 // flag for a body that could not be kept
	responseTraced  = 1 << 1 // flag for a span

	responseLength   = 2 // offset of the length
	responseChecksum = 6 // offset of the checksum
	responseContent  = 10

	// maxResponseValues bounds the names and the values in a header or a trailer.
	maxResponseValues = 4096
)

// ErrResponseDamaged says that a stored response was cut off, extended or changed.
var ErrResponseDamaged = errors.New("idem: stored response is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum that belongs into a binary form.
func checksum(data []byte) uint32 {
	return crc32.Update(crc32.Checksum(data[:responseChecksum], castagnoli), castagnoli, data[responseContent:])
}

// AppendBinary appends the binary form to buf. The error wraps [ErrResponseInvalid] if
// header or trailer hold more than 4,096 names or values, or if the response has 4 GiB or
// more.
func (r *Response) AppendBinary(buf []byte) ([]byte, error) {
	start := len(buf)
	buf = slices.Grow(buf, responseContent+64+int(r.Size()))
	buf = append(buf, responseVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if r.Omitted {
		buf[start+1] |= responseOmitted
	}
	if !r.Span.IsZero() {
		buf[start+1] |= responseTraced
		buf = append(append(buf, r.Span.TraceID[:]...), r.Span.SpanID[:]...)
	}
	buf = binary.AppendVarint(buf, int64(r.Status))
	for _, fields := range []map[string][]string{r.Header, r.Trailer} {
		values := 0
		buf = binary.AppendUvarint(buf, uint64(len(fields)))
		for _, name := range sortedNames(fields) {
			buf = appendText(buf, name)
			buf = binary.AppendUvarint(buf, uint64(len(fields[name])))
			for _, v := range fields[name] {
				buf = appendText(buf, v)
				values++
			}
		}
		if max(len(fields), values) > maxResponseValues {
			return nil, fmt.Errorf("%w: %d fields and %d values, at most %d", ErrResponseInvalid, len(fields), values, maxResponseValues)
		}
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

func appendText(buf []byte, s string) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(s)))
	return append(buf, s...)
}

// UnmarshalBinary sets r to the response in a form made by [Response.AppendBinary], and
// accepts nothing else. It keeps no reference to data. It allocates at most in proportion to
// it. Empty maps and bodies come back as nil. The error wraps [ErrNewerRecord] if a newer
// build wrote the response, and otherwise [ErrResponseDamaged]. r is unchanged then.
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
	case data[0] < responseVersion:
		return fmt.Errorf("%w: it has version %d, and this build reads version %d only", ErrResponseDamaged, data[0], responseVersion)
	}
	d := decoder{rest: data[responseContent:]}
	out := Response{Omitted: data[1]&responseOmitted != 0}
	if data[1]&responseTraced != 0 {
		d.bytes(out.Span.TraceID[:])
		d.bytes(out.Span.SpanID[:])
	}
	status := d.number()
	out.Status = int(int64(status>>1) ^ -int64(status&1))
	out.Header, out.Trailer = d.fields(), d.fields()
	out.Body = append(out.Body, d.rest...)
	if again, err := out.AppendBinary(nil); err != nil || !bytes.Equal(again, data) {
		return fmt.Errorf("%w: it is malformed", ErrResponseDamaged)
	}
	*r = out
	return nil
}

// decoder reads from rest. If rest is malformed, it drops rest and returns zero values.
type decoder struct{ rest []byte }

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.rest = nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) bytes(to []byte) { d.rest = d.rest[copy(to, d.rest):] }

func (d *decoder) text() string {
	n := min(d.number(), uint64(len(d.rest)))
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) fields() (fields map[string][]string) {
	for names := d.number(); names > 0 && len(d.rest) > 0; names-- {
		if fields == nil {
			fields = make(map[string][]string)
		}
		name, values := d.text(), []string(nil)
		for n := d.number(); n > 0 && len(d.rest) > 0; n-- {
			values = append(values, d.text())
		}
		fields[name] = values
	}
	return fields
}

// Span names a span, as W3C Trace Context does. The zero Span is none.
type Span struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// IsZero reports whether s names no span.
func (s Span) IsZero() bool { return s == Span{} }

// sortedNames returns the names of headers in ascending order. With slices.Sorted(maps.Keys)
// BenchmarkResponseBinary/append makes 8 allocations in place of one.
func sortedNames(header map[string][]string) []string {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
