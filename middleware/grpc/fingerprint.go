package idemgrpc

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxDepth bounds messages inside each other. JSON bodies have the same bound.
const maxDepth = 128

var (
	errTooDeep = errors.New("idemgrpc: messages are nested deeper than 128")
	errUnknown = errors.New("idemgrpc: unknown fields are malformed")
)

// appendCanonical appends the canonical form of a message to dst. The form is a
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
// The fields of the outermost message in without are left out. appendCanonical returns
// an error for messages nested deeper than 128 and for malformed unknown fields. dst is
// unchanged then.
func appendCanonical(dst []byte, msg proto.Message, without ...protoreflect.Name) ([]byte, error) {
	m := msg.ProtoReflect()
	// Deterministic also has the serialiser decode what it has kept as the client sent it.
	out, err := proto.MarshalOptions{AllowPartial: true, Deterministic: true}.MarshalAppend(dst, msg)
	if err != nil {
		return dst, err
	}
	form := out[len(dst):]
	if len(without) > 0 {
		if form, err = leaveOut(form, m, without); err != nil {
			return dst, err
		}
	}
	if err := arrange(form, m.Descriptor(), 0); err != nil {
		return dst, err
	}
	return out[:len(dst)+len(form)], nil
}

// leaveOut removes fields of a message from its serialised form, in place. Unknown fields stay.
// Serialisers write those last.
func leaveOut(form []byte, m protoreflect.Message, without []protoreflect.Name) ([]byte, error) {
	var numbers []protoreflect.FieldNumber
	for _, name := range without {
		if fd := m.Descriptor().Fields().ByName(name); fd != nil {
			numbers = append(numbers, fd.Number())
		}
	}
	if len(numbers) == 0 {
		return form, nil
	}
	known, kept := len(form)-len(m.GetUnknown()), form[:0]
	for at := 0; at < known; {
		number, _, n := protowire.ConsumeField(form[at:])
		if n < 0 {
			return nil, errUnknown
		}
		if !slices.Contains(numbers, number) {
			kept = append(kept, form[at:at+n]...)
		}
		at += n
	}
	return append(kept, form[known:]...), nil
}

// arrange brings the fields of a serialised message into the canonical order, in place. A
// serialiser chooses the order of fields and of map entries, and nothing else. So the
// lengths do not change, and most forms are in order already.
func arrange(form []byte, md protoreflect.MessageDescriptor, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	ordered := true
	var last piece
	for at := 0; at < len(form); {
		p, err := next(form[at:], md, &last)
		if err != nil {
			return err
		}
		if p.inner != nil {
			inside := depth + 1
			if p.entry { // the entry itself is no level
				inside = depth
			}
			if err := arrange(p.inner, p.field.Message(), inside); err != nil {
				return err
			}
		}
		ordered = ordered && (at == 0 || compare(&last, &p) <= 0)
		last = p
		at += len(p.form)
	}
	if ordered {
		return nil
	}
	var pieces []piece
	for rest, last := form, (piece{}); len(rest) > 0; rest = rest[len(last.form):] {
		p, err := next(rest, md, &last)
		if err != nil {
			return err
		}
		last, pieces = p, append(pieces, p)
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return compare(&a, &b) })
	sorted := make([]byte, 0, len(form))
	for i := range pieces {
		sorted = append(sorted, pieces[i].form...)
	}
	copy(form, sorted)
	return nil
}

// piece is one field of a serialised message, or one entry of a map or element of a list.
type piece struct {
	form   []byte
	number protoreflect.FieldNumber
	field  protoreflect.FieldDescriptor // nil if it is unknown, or not needed
	inner  []byte                       // the message in it, or nil
	entry  bool                         // it is an entry of a map, with this key:
	rank   uint64                       // of a number or a bool
	text   []byte
}

// compare orders pieces by number, and entries of a map by their keys.
func compare(a, b *piece) int {
	if c := cmp.Compare(a.number, b.number); c != 0 || !a.entry || !b.entry {
		return c
	}
	return cmp.Or(cmp.Compare(a.rank, b.rank), bytes.Compare(a.text, b.text))
}

// next reads the first piece of a form. last is the piece before it, which is often one of the
// same field.
func next(form []byte, md protoreflect.MessageDescriptor, last *piece) (p piece, err error) {
	number, kind, tag := protowire.ConsumeTag(form)
	if tag < 0 {
		return p, errUnknown
	}
	value := protowire.ConsumeFieldValue(number, kind, form[tag:])
	if value < 0 {
		return p, errUnknown
	}
	p = piece{form: form[:tag+value], number: number}
	if kind != protowire.BytesType && kind != protowire.StartGroupType {
		return p, nil
	}
	if p.field = last.field; last.number != number || p.field == nil {
		p.field = fieldOf(md, number)
	}
	switch {
	case p.field == nil:
	case kind == protowire.BytesType && p.field.Kind() == protoreflect.MessageKind:
		p.inner, _ = protowire.ConsumeBytes(p.form[tag:])
		if p.entry = p.field.IsMap(); p.entry {
			p.rank, p.text, err = keyOf(p.inner, p.field.MapKey().Kind())
		}
	case kind == protowire.StartGroupType && p.field.Kind() == protoreflect.GroupKind:
		p.inner, _ = protowire.ConsumeGroup(number, p.form[tag:])
	}
	return p, err
}

// fieldOf finds a field or an extension, nil if it is unknown.
func fieldOf(md protoreflect.MessageDescriptor, number protoreflect.FieldNumber) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByNumber(number); fd != nil {
		return fd
	}
	if md.ExtensionRanges().Has(number) {
		if xt, err := protoregistry.GlobalTypes.FindExtensionByNumber(md.FullName(), number); err == nil {
			return xt.TypeDescriptor()
		}
	}
	return nil
}

// keyOf returns the key of a map's entry, as a text or as a number in the order of the keys.
func keyOf(entry []byte, kind protoreflect.Kind) (rank uint64, text []byte, err error) {
	for len(entry) > 0 {
		number, wire, tag := protowire.ConsumeTag(entry)
		if tag < 0 {
			return 0, nil, errUnknown
		}
		value := protowire.ConsumeFieldValue(number, wire, entry[tag:])
		if value < 0 {
			return 0, nil, errUnknown
		}
		if number == 1 {
			switch v := entry[tag:]; wire {
			case protowire.VarintType:
				rank, _ = protowire.ConsumeVarint(v)
			case protowire.Fixed32Type:
				n, _ := protowire.ConsumeFixed32(v)
				rank = uint64(n)
			case protowire.Fixed64Type:
				rank, _ = protowire.ConsumeFixed64(v)
			case protowire.BytesType:
				text, _ = protowire.ConsumeBytes(v)
			}
		}
		entry = entry[tag+value:]
	}
	const sign = 1 << 63
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sfixed64Kind:
		rank ^= sign
	case protoreflect.Sfixed32Kind:
		rank = uint64(int64(int32(uint32(rank)))) ^ sign
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		rank = uint64(protowire.DecodeZigZag(rank)) ^ sign
	}
	return rank, text, nil
}
