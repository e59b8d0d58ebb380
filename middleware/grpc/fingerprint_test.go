package idemgrpc_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

func canonical(t testing.TB, m proto.Message) string {
	t.Helper()
	b, err := idemgrpc.AppendCanonical(nil, m)
	if err != nil {
		t.Fatalf("AppendCanonical(%v) = %v", m, err)
	}
	return hex.EncodeToString(b)
}

func everything() *walletv1.Kinds {
	return &walletv1.Kinds{
		BoolField: true, Int32Field: -1, Sint32Field: -2, Uint32Field: math.MaxUint32, Int64Field: math.MinInt64, Sint64Field: -3,
		Uint64Field: math.MaxUint64, Fixed32Field: 4, Sfixed32Field: -5, FloatField: 1.5, Fixed64Field: 6, Sfixed64Field: -7,
		DoubleField: math.Copysign(0, -1), StringField: "é", BytesField: []byte{0, 255}, EnumField: walletv1.Color_COLOR_BLUE,
		MessageField: &walletv1.Kinds{}, OptionalField: proto.Int32(0), PackedField: []int32{0, -1, 300}, UnpackedField: []int32{1, 0},
		StringsField: []string{"", "a"}, MessagesField: []*walletv1.Kinds{{}, {BoolField: true}},
		StringMap: map[string]*walletv1.Kinds{"b": {}, "": nil, "a": {Int32Field: 1}},
		IntMap:    map[int32]string{-1: "minus", 10: "ten", 9: ""},
		BoolMap:   map[bool]float64{true: 1, false: 0}, UintMap: map[uint64]walletv1.Color{math.MaxUint64: walletv1.Color_COLOR_RED, 0: 0},
		Choice: &walletv1.Kinds_ChoiceNumber{},
	}
}

// The golden form must never change: records of running services hold it.
func TestCanonicalIsStableAcrossBuilds(t *testing.T) {
	t.Parallel()
	const want = "080110ffffffffffffffffff01180320ffffffff0f288080808080808080800130053" + "8ffffffffffffffffff01450400000" + "04dfbffffff550000c03f" +
		"59060000000000000061f9ffffffffffffff69000000000000008072" + "02c3a97a0200ff8001feffffffffffffffff018a01009001009a010d00ffffffffffffffffff01ac02" +
		"a00101a00100aa0100aa010161b20100b201020801" + "ba01040a001200ba01070a016112021001ba01050a01621200" +
		"c2011208ffffffffffffffffff0112056d696e7573c201040809" + "1200c20107080a120374656e" +
		"ca010b0800110000000000000000ca010b080111000000000000f03f" + "d20104080010" + "00d2010d08ffffffffffffffffff011001e00100"
	if got := canonical(t, everything()); got != want {
		t.Errorf("AppendCanonical() = %s, want %s", got, want)
	}
	legacy := &walletv1.Legacy{Number: proto.Int32(7), Part: &walletv1.Legacy_Part{Text: new("x")}, Numbers: []int32{1, 2}}
	proto.SetExtension(legacy, walletv1.E_Remark, "r")
	proto.SetExtension(legacy, walletv1.E_Count, int64(5))
	if got, want := canonical(t, legacy), "0807"+"130a017814"+"18011802"+"a00605"+"aa060172"; got != want {
		t.Errorf("AppendCanonical(proto2) = %s, want %s", got, want)
	}
}

func TestCanonicalIsASerialisation(t *testing.T) {
	t.Parallel()
	want := everything()
	for range 20 { // maps come in any order
		b, err := idemgrpc.AppendCanonical([]byte("prefix"), want)
		if err != nil || !bytes.HasPrefix(b, []byte("prefix")) {
			t.Fatalf("AppendCanonical() = %q, %v", b, err)
		}
		got := new(walletv1.Kinds)
		if err := proto.Unmarshal(b[len("prefix"):], got); err != nil || !proto.Equal(got, want) {
			t.Fatalf("Unmarshal(AppendCanonical(m)) = %v, %v, want m", got, err)
		}
		wire, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		again := new(walletv1.Kinds)
		if err := proto.Unmarshal(wire, again); err != nil || canonical(t, again) != canonical(t, want) {
			t.Fatalf("the form is not that of the message sent and received: %v", err)
		}
	}
}

func TestCanonicalTellsMessagesApart(t *testing.T) {
	t.Parallel()
	negativeNaN := math.Float64frombits(math.Float64bits(math.NaN()) | 1<<63)
	messages := []*walletv1.Kinds{
		{}, {OptionalField: proto.Int32(0)}, {MessageField: &walletv1.Kinds{}}, {Choice: &walletv1.Kinds_ChoiceText{}},
		{Choice: &walletv1.Kinds_ChoiceNumber{}}, {DoubleField: math.Copysign(0, -1)}, {DoubleField: math.NaN()},
		{DoubleField: negativeNaN}, {FloatField: float32(math.Copysign(0, -1))}, {StringsField: []string{"ab"}},
		{StringsField: []string{"a", "b"}}, {StringsField: []string{"b", "a"}}, {StringField: "ab"}, {BytesField: []byte("ab")},
		{IntMap: map[int32]string{1: "a"}}, {IntMap: map[int32]string{1: "a", 2: ""}}, {Int64Field: 1}, {Int64Field: 1 << 53}, {Int64Field: 1<<53 + 1},
		{MessagesField: []*walletv1.Kinds{{}}}, {MessagesField: []*walletv1.Kinds{{}, {}}}, {PackedField: []int32{0}}, {PackedField: []int32{0, 0}},
	}
	seen := map[string]int{}
	for i, m := range messages {
		form := canonical(t, m)
		if j, ok := seen[form]; ok {
			t.Errorf("%v and %v have one form", messages[j], m)
		}
		seen[form] = i
	}
}

func TestCanonicalOfUnknownFields(t *testing.T) {
	t.Parallel()
	raw := func(number protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text)
	}
	with := func(fields ...[]byte) *walletv1.TransferResponse { // knows 1 and 2
		m := &walletv1.TransferResponse{Amount: 3}
		m.ProtoReflect().SetUnknown(slices.Concat(fields...))
		return m
	}
	a := canonical(t, with(raw(9, "x"), raw(4, "y"), raw(9, "z")))
	if b := canonical(t, with(raw(4, "y"), raw(9, "x"), raw(9, "z"))); a != b {
		t.Errorf("the order of unknown fields counts: %s, %s", a, b)
	}
	if b := canonical(t, with(raw(4, "y"), raw(9, "z"), raw(9, "x"))); a == b {
		t.Error("the order within one unknown field does not count")
	}
	if canonical(t, with()) == a {
		t.Error("unknown fields are left out")
	}

	// A server that learns a field later still finds the same request.
	known := &walletv1.TransferRequest{RequestId: "r", To: "bob", Amount: 3, Note: "n"}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(known)
	if err != nil {
		t.Fatal(err)
	}
	older := new(walletv1.GetBalanceRequest) // knows none of them
	if err := proto.Unmarshal(wire, older); err != nil {
		t.Fatal(err)
	}
	if got, want := canonical(t, older), canonical(t, known); got != want {
		t.Errorf("form where the fields are unknown = %s, want %s", got, want)
	}

	bad := new(walletv1.TransferResponse)
	bad.ProtoReflect().SetUnknown([]byte{0x0a, 0xff})
	if _, err := idemgrpc.AppendCanonical(nil, bad); err == nil {
		t.Error("AppendCanonical() of malformed unknown fields = nil, want an error")
	}
	if _, err := idemgrpc.AppendCanonical(nil, &walletv1.Kinds{StringField: "\xff"}); err == nil {
		t.Error("AppendCanonical() of a text that is not UTF-8 = nil, want an error")
	}
}

func TestCanonicalLeavesTheKeyOut(t *testing.T) {
	t.Parallel()
	a, err := idemgrpc.AppendCanonical(nil, &walletv1.TransferRequest{RequestId: "k1", Amount: 1}, "request_id")
	if want := canonical(t, &walletv1.TransferRequest{Amount: 1}); err != nil || hex.EncodeToString(a) != want {
		t.Errorf("AppendCanonical() = %x, %v, want %s", a, err, want)
	}
	// Only the field of the request itself is the key.
	extended := &walletv1.Legacy{}
	proto.SetExtension(extended, walletv1.E_Remark, "r")
	for name, m := range map[protoreflect.Name]proto.Message{
		"string_field": &walletv1.Kinds{MessageField: &walletv1.Kinds{StringField: "a"}},
		"remark":       extended,
	} {
		if got, err := idemgrpc.AppendCanonical(nil, m, name); err != nil || hex.EncodeToString(got) != canonical(t, m) {
			t.Errorf("AppendCanonical(%v) without %s = %x, %v, want all of it", m, name, got, err)
		}
	}
}

func TestCanonicalBoundsNesting(t *testing.T) {
	t.Parallel()
	nested := func(depth int) *walletv1.Kinds {
		m := &walletv1.Kinds{}
		for range depth {
			m = &walletv1.Kinds{MessageField: m}
		}
		return m
	}
	if _, err := idemgrpc.AppendCanonical(nil, nested(128)); err != nil {
		t.Errorf("128 levels: %v", err)
	}
	if b, err := idemgrpc.AppendCanonical([]byte("p"), nested(129)); err == nil || string(b) != "p" {
		t.Errorf("129 levels: %q, %v, want an error", b, err)
	}
}

// The form is that of the serialiser with its fields put in order. So it takes about the memory of the
// message, however many messages and map entries it has.
func TestCanonicalTakesTheMemoryOfTheMessage(t *testing.T) {
	many := &walletv1.Kinds{IntMap: map[int32]string{}}
	for i := range 10_000 {
		many.MessagesField = append(many.MessagesField, &walletv1.Kinds{StringField: "text", MessageField: &walletv1.Kinds{BoolField: true}})
		many.IntMap[int32(i)] = "text"
	}
	size := proto.Size(many)
	canonical(t, many) // what the runtime keeps for the type
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := idemgrpc.AppendCanonical(nil, many)
	runtime.ReadMemStats(&after)
	// The serialiser sorts the keys of the map, which takes a slice of them.
	if got := after.TotalAlloc - before.TotalAlloc; err != nil || got > 8*uint64(size) {
		t.Errorf("AppendCanonical() of a message of %d bytes takes %d bytes, want at most 8 times as many", size, got)
	}
}
