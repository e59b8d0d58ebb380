package idemgrpc

import (
	"cmp"
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth bounds messages inside each other. JSON bodies have the same bound.
const maxDepth = 128

var (
	errTooDeep = errors.New("idemgrpc: messages are nested deeper than 128")
	errUnknown = errors.New("idemgrpc: unknown fields are malformed")
)

// AppendCanonical appends the canonical form of a message to dst. The form is a
// serialisation in the protobuf wire format with these properties:
//
//   - Fields are in ascending order of their numbers, extensions included. Fields
//     without a value are left out.
//   - Repeated fields are packed or not as they are declared.
//   - Map entries are in ascending order of their keys, each with key and value. false
//     comes before true, numbers are ordered by size, text by its bytes.
//   - Varints are as short as they can be. Floats have their exact bits, so 0 and
//     -0, and two NaNs, can differ.
//   - Unknown fields stand at their numbers with the bytes of the request. They come
//     after known fields of the same number, and in the order of the request.
//
// Serialisers may write another form, and "deterministic" ones may change theirs in the
// next release. This form depends only on the message and its declaration. It also stays
// the same when a server learns a new field, if clients write that field in canonical
// form. Serialised data inside of a message (google.protobuf.Any, bytes) is taken as it
// is.
//
// The fields of the outermost message in without are left out. AppendCanonical returns
// an error for messages nested deeper than 128 and for malformed unknown fields. dst is
// unchanged then.
func AppendCanonical(dst []byte, msg proto.Message, without ...protoreflect.Name) ([]byte, error) {
	c := canonicalizer{without: without}
	form := c.message(msg.ProtoReflect(), 0)
	if c.err != nil {
		return dst, c.err
	}
	return append(dst, form...), nil
}

// canonicalizer has the serialiser write one field, or one entry of a map, at a time. A
// serialiser chooses the order of these and nothing else.
type canonicalizer struct {
	without []protoreflect.Name
	err     error // the first one
}

// message returns the form of a message. Only the outermost one, at depth 0, leaves
// fields out.
func (c *canonicalizer) message(m protoreflect.Message, depth int) []byte {
	if depth > maxDepth {
		c.err = cmp.Or(c.err, errTooDeep)
		return nil
	}
	type field struct {
		number protoreflect.FieldNumber
		form   []byte
	}
	var fields []field
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if depth > 0 || fd.IsExtension() || !slices.Contains(c.without, fd.Name()) {
			fields = append(fields, field{fd.Number(), c.field(m.New(), fd, v, depth)})
		}
		return true
	})
	for rest := m.GetUnknown(); len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			c.err = cmp.Or(c.err, errUnknown)
			break
		}
		fields = append(fields, field{number, rest[:n]})
		rest = rest[n:]
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.number, b.number) })
	var form []byte
	for _, f := range fields {
		form = append(form, f.form...)
	}
	return form
}

// field returns the form of a field. alone is an empty message with such a field.
func (c *canonicalizer) field(alone protoreflect.Message, fd protoreflect.FieldDescriptor, v protoreflect.Value, depth int) (form []byte) {
	switch {
	case fd.IsMap():
		var keys []protoreflect.MapKey
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			keys = append(keys, k)
			return true
		})
		slices.SortFunc(keys, compareKeys)
		entry := alone.Mutable(fd).Map()
		for _, k := range keys {
			entry.Set(k, c.value(fd.MapValue(), v.Map().Get(k), depth))
			form = append(form, c.serialise(alone)...)
			entry.Clear(k)
		}
		return form
	case fd.IsList():
		list := alone.Mutable(fd).List()
		for i := range v.List().Len() {
			list.Append(c.value(fd, v.List().Get(i), depth))
		}
	default:
		alone.Set(fd, c.value(fd, v, depth))
	}
	return c.serialise(alone)
}

// value returns a value for the serialiser. A message becomes an empty message with its
// form as unknown fields, because serialisers copy those.
func (c *canonicalizer) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, depth int) protoreflect.Value {
	if fd.Message() == nil {
		return v
	}
	opaque := v.Message().New()
	opaque.SetUnknown(c.message(v.Message(), depth+1))
	return protoreflect.ValueOfMessage(opaque)
}

func (c *canonicalizer) serialise(m protoreflect.Message) []byte {
	form, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m.Interface())
	c.err = cmp.Or(c.err, err)
	return form
}

// compareKeys compares two keys of one kind.
func compareKeys(a, b protoreflect.MapKey) int {
	switch x := a.Interface().(type) {
	case string:
		return cmp.Compare(x, b.String())
	case bool:
		return cmp.Compare(protowire.EncodeBool(x), protowire.EncodeBool(b.Bool()))
	case uint32, uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	default:
		return cmp.Compare(a.Int(), b.Int())
	}
}
