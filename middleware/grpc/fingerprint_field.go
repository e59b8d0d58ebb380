package idemgrpc

import (
	"cmp"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Numbers of the fields of a map's entry.
const (
	entryKey   = 1
	entryValue = 2
)

func (c *canonicalizer) field(b []byte, f *field, v protoreflect.Value, depth int) []byte {
	switch f.shape {
	case entries:
		return c.entries(b, f, v.Map(), depth)
	case list:
		return c.list(b, f, v.List(), depth)
	}
	return c.single(b, f.kind, f.number, v, depth)
}

func (c *canonicalizer) list(b []byte, f *field, l protoreflect.List, depth int) []byte {
	if !f.IsPacked() {
		for i := range l.Len() {
			b = c.single(b, f.kind, f.number, l.Get(i), depth)
		}
		return b
	}
	b = protowire.AppendTag(b, f.number, protowire.BytesType)
	start := len(b)
	for i := range l.Len() {
		b = scalar(b, f.kind, l.Get(i))
	}
	return prefixLength(b, start)
}

// entries appends a map. Keys of one kind are put in order by their value:
// false before true, numbers by size, text by its bytes.
func (c *canonicalizer) entries(b []byte, f *field, m protoreflect.Map, depth int) []byte {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	key, value := f.MapKey().Kind(), f.MapValue().Kind()
	slices.SortFunc(keys, compareKeys(key))
	for _, k := range keys {
		b = protowire.AppendTag(b, f.number, protowire.BytesType)
		start := len(b)
		b = c.single(b, key, entryKey, k.Value(), depth)
		b = c.single(b, value, entryValue, m.Get(k), depth)
		b = prefixLength(b, start)
	}
	return b
}

func compareKeys(kind protoreflect.Kind) func(a, b protoreflect.MapKey) int {
	switch kind {
	case protoreflect.StringKind:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) }
	case protoreflect.BoolKind:
		return func(a, b protoreflect.MapKey) int {
			return cmp.Compare(protowire.EncodeBool(a.Bool()), protowire.EncodeBool(b.Bool()))
		}
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Uint(), b.Uint()) }
	default:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Int(), b.Int()) }
	}
}

// single appends a tag and a value.
func (c *canonicalizer) single(b []byte, kind protoreflect.Kind, number protoreflect.FieldNumber, v protoreflect.Value, depth int) []byte {
	b = protowire.AppendTag(b, number, wireTypes[kind])
	switch kind {
	case protoreflect.MessageKind:
		start := len(b)
		return prefixLength(c.message(b, v.Message(), depth+1), start)
	case protoreflect.GroupKind:
		b = c.message(b, v.Message(), depth+1)
		return protowire.AppendTag(b, number, protowire.EndGroupType)
	}
	return scalar(b, kind, v)
}

// scalar appends what is no message.
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

// prefixLength puts the length of b[start:] in front of it.
func prefixLength(b []byte, start int) []byte {
	n := len(b) - start
	var prefix [10]byte
	return slices.Insert(b, start, protowire.AppendVarint(prefix[:0], uint64(n))...)
}

var wireTypes = [...]protowire.Type{
	protoreflect.BoolKind:     protowire.VarintType,
	protoreflect.EnumKind:     protowire.VarintType,
	protoreflect.Int32Kind:    protowire.VarintType,
	protoreflect.Sint32Kind:   protowire.VarintType,
	protoreflect.Uint32Kind:   protowire.VarintType,
	protoreflect.Int64Kind:    protowire.VarintType,
	protoreflect.Sint64Kind:   protowire.VarintType,
	protoreflect.Uint64Kind:   protowire.VarintType,
	protoreflect.Sfixed32Kind: protowire.Fixed32Type,
	protoreflect.Fixed32Kind:  protowire.Fixed32Type,
	protoreflect.FloatKind:    protowire.Fixed32Type,
	protoreflect.Sfixed64Kind: protowire.Fixed64Type,
	protoreflect.Fixed64Kind:  protowire.Fixed64Type,
	protoreflect.DoubleKind:   protowire.Fixed64Type,
	protoreflect.StringKind:   protowire.BytesType,
	protoreflect.BytesKind:    protowire.BytesType,
	protoreflect.MessageKind:  protowire.BytesType,
	protoreflect.GroupKind:    protowire.StartGroupType,
}
