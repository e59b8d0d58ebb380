package idemgrpc

import (
	"cmp"
	"errors"
	"math"
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

// AppendCanonical appends the canonical form of a message to dst. It is the serialisation
// in the protobuf wire format with these properties:
//
//   - Fields are in ascending order of their numbers, extensions included, and only
//     fields that are set are there.
//   - Repeated fields are packed or not as they are declared.
//   - Map entries are in ascending order of their keys, each with key and value.
//   - Varints are as short as they can be. Floats have their exact bits, so that 0 and
//     -0, and two NaNs, can differ.
//   - Unknown fields stand at their numbers as the bytes in which they came, after known
//     fields of that number and in the order in which they came.
//
// Serialisers may write another form, and "deterministic" ones may change theirs in the
// next release. This form depends only on the message and its declaration. It also stays
// the same when a server learns a field that it did not know before, if clients write
// that field in canonical form. Serialised data inside of a message
// (google.protobuf.Any, bytes) is taken as it is.
//
// The fields of the message itself that are named in without are left out. The error
// says that messages are nested deeper than 128, or that unknown fields are malformed.
// dst is unchanged then.
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

func (c *canonicalizer) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// field is a known field of a message, or the bytes of an unknown one.
type field struct {
	number  protoreflect.FieldNumber
	desc    protoreflect.FieldDescriptor
	value   protoreflect.Value
	unknown []byte
}

// message appends the fields of a message. Only the outermost one, at depth 0, leaves
// fields out.
func (c *canonicalizer) message(b []byte, m protoreflect.Message, depth int) []byte {
	if depth > maxDepth {
		c.fail(errTooDeep)
		return b
	}
	var fields []field
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if depth > 0 || fd.IsExtension() || !slices.Contains(c.without, fd.Name()) {
			fields = append(fields, field{number: fd.Number(), desc: fd, value: v})
		}
		return true
	})
	for rest := m.GetUnknown(); len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			c.fail(errUnknown)
			break
		}
		fields = append(fields, field{number: number, unknown: rest[:n]})
		rest = rest[n:]
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.number, b.number) })
	for _, f := range fields {
		switch {
		case f.desc == nil:
			b = append(b, f.unknown...)
		case f.desc.IsMap():
			b = c.entries(b, f.desc, f.value.Map(), depth)
		case f.desc.IsList():
			b = c.list(b, f.desc, f.value.List(), depth)
		default:
			b = c.single(b, f.desc.Kind(), f.number, f.value, depth)
		}
	}
	return b
}

func (c *canonicalizer) list(b []byte, fd protoreflect.FieldDescriptor, l protoreflect.List, depth int) []byte {
	if !fd.IsPacked() {
		for i := range l.Len() {
			b = c.single(b, fd.Kind(), fd.Number(), l.Get(i), depth)
		}
		return b
	}
	var packed []byte
	for i := range l.Len() {
		packed = scalar(packed, fd.Kind(), l.Get(i))
	}
	return appendField(b, fd.Number(), packed)
}

// Numbers of the fields of a map's entry.
const (
	entryKey   = 1
	entryValue = 2
)

// entries appends a map. Keys are in order of their value: false before true, numbers by
// size, text by its bytes.
func (c *canonicalizer) entries(b []byte, fd protoreflect.FieldDescriptor, m protoreflect.Map, depth int) []byte {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		entry := c.single(nil, fd.MapKey().Kind(), entryKey, k.Value(), depth)
		entry = c.single(entry, fd.MapValue().Kind(), entryValue, m.Get(k), depth)
		b = appendField(b, fd.Number(), entry)
	}
	return b
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

// single appends a tag and a value.
func (c *canonicalizer) single(b []byte, kind protoreflect.Kind, number protoreflect.FieldNumber, v protoreflect.Value, depth int) []byte {
	switch kind {
	case protoreflect.MessageKind:
		return appendField(b, number, c.message(nil, v.Message(), depth+1))
	case protoreflect.GroupKind:
		b = protowire.AppendTag(b, number, protowire.StartGroupType)
		b = c.message(b, v.Message(), depth+1)
		return protowire.AppendTag(b, number, protowire.EndGroupType)
	}
	return scalar(protowire.AppendTag(b, number, wireType(kind)), kind, v)
}

func wireType(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.Sfixed32Kind, protoreflect.Fixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind:
		return protowire.BytesType
	default:
		return protowire.VarintType
	}
}

// scalar appends a value that is no message.
func scalar(b []byte, kind protoreflect.Kind, v protoreflect.Value) []byte {
	switch kind {
	case protoreflect.BoolKind:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
	case protoreflect.EnumKind:
		return protowire.AppendVarint(b, uint64(int64(v.Enum()))) // sign-extended, as int32 is
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return protowire.AppendVarint(b, uint64(v.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.AppendVarint(b, protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return protowire.AppendVarint(b, v.Uint())
	case protoreflect.Sfixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Int()))
	case protoreflect.Fixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Uint()))
	case protoreflect.FloatKind:
		return protowire.AppendFixed32(b, math.Float32bits(float32(v.Float())))
	case protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(b, uint64(v.Int()))
	case protoreflect.Fixed64Kind:
		return protowire.AppendFixed64(b, v.Uint())
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(b, math.Float64bits(v.Float()))
	case protoreflect.StringKind:
		return protowire.AppendString(b, v.String())
	default: // bytes
		return protowire.AppendBytes(b, v.Bytes())
	}
}
