package idemgrpc

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/idemkeeper/idemkeeper/idem"
)

// maxDepth bounds messages inside each other, as JSON bodies are bounded.
const maxDepth = 128

var (
	errTooDeep = errors.New("idemgrpc: messages are nested deeper than 128")
	errUnknown = errors.New("idemgrpc: unknown fields are malformed")
)

// canonicalBuffers keeps working memory between calls.
var canonicalBuffers = sync.Pool{New: func() any { return new([]byte) }}

// fingerprint is that of a call: of its method and its canonical message. The
// error is a [*idem.Refusal], or wraps idem.ErrFingerprintVersion.
func fingerprint(version uint8, operation string, msg proto.Message, keyField protoreflect.Name) (idem.Fingerprint, error) {
	buf := canonicalBuffers.Get().(*[]byte)
	defer canonicalBuffers.Put(buf)
	body, err := AppendCanonical((*buf)[:0], msg, keyField)
	if err != nil {
		return idem.Fingerprint{}, idem.NewRefusal(idem.CodeBodyInvalid, err)
	}
	const keep = 64 << 10
	if cap(body) <= keep {
		*buf = body
	}
	return idem.NewFingerprint(version, operation, string(body))
}

// AppendCanonical appends the canonical form of a message to dst. It is a
// serialisation of the message in the protobuf wire format, and of all there
// are the one in which
//
//   - fields are in ascending order of their numbers, extensions among them,
//     and only those that are set;
//   - repeated fields are packed or not as they are declared;
//   - map entries are in ascending order of their keys, each with key and value;
//   - varints are as short as they can be, and floats have their exact bits, so
//     that 0 and -0, and two NaNs, can differ;
//   - unknown fields stand at their numbers, behind known ones of that number
//     and in the order in which they came, as the bytes that they came in.
//
// Serialisers may do otherwise, and "deterministic" ones may do otherwise in
// their next release: this form depends on the message and its declaration
// only. It also stays the same when a server learns a field that it did not
// know before, provided that clients write that field in canonical form. What
// is serialised inside of a message (google.protobuf.Any, bytes) is taken as it
// is.
//
// Left out are the fields of the message itself that are named in without. The
// error says that messages are nested deeper than 128, or that unknown fields
// are malformed; then dst comes back unchanged.
func AppendCanonical(dst []byte, msg proto.Message, without ...protoreflect.Name) ([]byte, error) {
	c := canonicalizer{without: without}
	out := c.message(dst, msg.ProtoReflect(), 0)
	if c.err != nil {
		return dst, c.err
	}
	return out, nil
}

// canonicalizer keeps the first error.
type canonicalizer struct {
	without []protoreflect.Name
	err     error
}

// message appends the fields of a message. Those of the outermost one, at
// depth 0, may be left out.
func (c *canonicalizer) message(b []byte, m protoreflect.Message, depth int) []byte {
	if depth > maxDepth {
		c.fail(errTooDeep)
		return b
	}
	unknown := c.unknown(m.GetUnknown())
	fields := fieldsOf(m)
	for i := range fields {
		f := &fields[i]
		if !m.Has(f.FieldDescriptor) {
			continue
		}
		for len(unknown) > 0 && unknown[0].number < f.number {
			b, unknown = append(b, unknown[0].bytes...), unknown[1:]
		}
		if depth == 0 && slices.Contains(c.without, f.name) && !f.IsExtension() {
			continue
		}
		b = c.field(b, f, m.Get(f.FieldDescriptor), depth)
	}
	for _, u := range unknown {
		b = append(b, u.bytes...)
	}
	return b
}

// field is the declaration of a field, and what is asked of it for each message.
type field struct {
	protoreflect.FieldDescriptor
	name   protoreflect.Name
	number protoreflect.FieldNumber
	kind   protoreflect.Kind
	shape  shape
}

// shape is how many values a field has.
type shape uint8

const (
	single shape = iota
	list
	entries
)

func newField(fd protoreflect.FieldDescriptor) field {
	f := field{FieldDescriptor: fd, name: fd.Name(), number: fd.Number(), kind: fd.Kind()}
	switch {
	case fd.IsMap():
		f.shape = entries
	case fd.IsList():
		f.shape = list
	}
	return f
}

// fieldsOf returns all fields that may be set in a message, by number.
func fieldsOf(m protoreflect.Message) []field {
	p := planOf(m.Descriptor())
	if p.extensible {
		return rangeFields(m)
	}
	return p.fields
}

// rangeFields is for messages whose declaration does not name all fields.
func rangeFields(m protoreflect.Message) []field {
	var fields []field
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, newField(fd))
		return true
	})
	slices.SortFunc(fields, byNumber)
	return fields
}

// plan is what the declaration of a message says of its fields.
type plan struct {
	fields     []field // by number
	extensible bool
}

// plans maps message descriptors to plans. It grows with the types in the
// binary, not with the messages that come.
var plans sync.Map

func planOf(md protoreflect.MessageDescriptor) *plan {
	if p, ok := plans.Load(md); ok {
		return p.(*plan)
	}
	p := &plan{extensible: md.ExtensionRanges().Len() > 0}
	for i := range md.Fields().Len() {
		p.fields = append(p.fields, newField(md.Fields().Get(i)))
	}
	slices.SortFunc(p.fields, byNumber)
	plans.Store(md, p)
	return p
}

func byNumber(a, b field) int { return cmp.Compare(a.number, b.number) }

// rawField is a field that this binary does not know.
type rawField struct {
	number protoreflect.FieldNumber
	bytes  []byte
}

func (c *canonicalizer) unknown(b []byte) []rawField {
	var fields []rawField
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			c.fail(errUnknown)
			return nil
		}
		fields = append(fields, rawField{number, b[:n]})
		b = b[n:]
	}
	slices.SortStableFunc(fields, func(a, b rawField) int { return cmp.Compare(a.number, b.number) })
	return fields
}

func (c *canonicalizer) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}
