package clients

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// hostileMetadata are values of the key in metadata. Bytes that metadata cannot
// carry are refused by gRPC at both ends: they stay with HTTP.
var hostileMetadata = []struct {
	name string
	keys []string
	code string
}{
	{"none", nil, "key-missing"},
	{"empty", []string{""}, "key-invalid"},
	{"256 bytes", []string{strings.Repeat("k", 256)}, "key-invalid"},
	{"1 MiB", []string{strings.Repeat("k", 1<<20)}, "key-invalid"},
	{"two values", []string{"a", "b"}, "key-invalid"},
	{"list", []string{"a, b"}, "key-invalid"},
	{"parameters", []string{`"a";x=1`}, "key-invalid"},
	{"quote inside", []string{`a"b`}, "key-invalid"},
}

var hostileOrders = []struct {
	name string
	kit.Order
}{
	{"empty", kit.Order{}},
	{"missing field", kit.Order{From: "alice", To: "", Amount: kit.Amount, Currency: "USD", Note: "hostile"}},
	{"zero", kit.Order{From: "alice", To: "bob", Amount: 0, Currency: "USD", Note: "hostile"}},
	{"negative", kit.Order{From: "alice", To: "bob", Amount: -kit.Amount, Currency: "USD", Note: "hostile"}},
	{"the least", kit.Order{From: "alice", To: "bob", Amount: math.MinInt64, Currency: "USD", Note: "hostile"}},
	{"no currency", kit.Order{From: "alice", To: "bob", Amount: kit.Amount, Currency: "usd", Note: "hostile"}},
	{"to oneself", kit.Order{From: "alice", To: "alice", Amount: kit.Amount, Currency: "USD", Note: "hostile"}},
	{"NUL in a note", kit.Order{From: "alice", To: "bob", Amount: kit.Amount, Currency: "USD", Note: "\x00"}},
	{"long note", kit.Order{From: "alice", To: "bob", Amount: kit.Amount, Currency: "USD", Note: strings.Repeat("n", 501)}},
	{"long account", kit.Order{From: strings.Repeat("a", 1000), To: "bob", Amount: kit.Amount, Currency: "USD", Note: "hostile"}},
}

// wireOrder is a good order as bytes, for messages that no generated code makes.
func wireOrder() []byte {
	var b []byte
	for i, s := range []string{"alice", "bob", "", "USD", "hostile"} {
		if n := protowire.Number(i + 1); s != "" {
			b = protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
		} else {
			b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), kit.Amount)
		}
	}
	return b
}

// hostileMessages are messages on the wire. Those that are no protobuf of this
// type are refused by gRPC itself, as INTERNAL.
var hostileMessages = []struct {
	name    string
	message []byte
	decodes bool
}{
	{"unknown field", protowire.AppendVarint(protowire.AppendTag(wireOrder(), 99, protowire.VarintType), 1), true},
	{"text", []byte("hello"), false},
	{"JSON", []byte(goodBody), false},
	{"cut off", wireOrder()[:8], false},
	{"field number 0", append(wireOrder(), 0, 0), false},
	{"invalid UTF-8", protowire.AppendString(protowire.AppendTag(wireOrder(), 5, protowire.BytesType), "\xff"), false},
}

func TestHostileCallsAreRefusedAndLeaveNothing(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one")
	c := in.Client(kit.OverGRPC{})
	check := untouched(s, in)

	good := kit.FromAlice(kit.Amount, "hostile")
	for _, r := range []kit.Route{kit.ToPayments, kit.ToTrades} {
		for _, k := range hostileMetadata {
			kit.WantRefusal(t, "key "+k.name, c.Send(t.Context(), r, good, k.keys...), k.code)
		}
		for _, o := range hostileOrders {
			kit.WantRefusal(t, "order "+o.name, c.Send(t.Context(), r, o.Order, "hostile"), "body-invalid")
		}
		kit.WantRefusal(t, "message over the limit", c.Send(t.Context(), r, kit.FromAlice(kit.Amount, strings.Repeat("n", 1<<20)), "hostile"), "body-too-large")
	}
	for _, m := range hostileMessages {
		err := rawCall(t, c, m.message)
		if m.decodes {
			a := kit.Answer{}
			a.ReadGRPC(t.Context(), nil, err)
			kit.WantRefusal(t, m.name, a, "body-invalid")
		} else if st := status.Convert(err); st.Code() != codes.Internal || len(st.Details()) > 0 {
			t.Errorf("message %s = %v, want INTERNAL of gRPC itself", m.name, err)
		}
	}
	// Over gRPC's own limit of 4 MiB the message is not even read.
	// The middleware would answer with the same code, and with details.
	err := rawCall(t, c, slices.Repeat(wireOrder(), 5<<20/len(wireOrder())))
	if st := status.Convert(err); st.Code() != codes.ResourceExhausted || len(st.Details()) > 0 {
		t.Errorf("message of 5 MiB = %v, want RESOURCE_EXHAUSTED of gRPC itself", err)
	}
	check(t)
}

// raw calls CreatePayment with bytes that need not be a message.
func rawCall(t *testing.T, c kit.Client, message []byte) error {
	t.Helper()
	conn, err := c.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+c.Token, "idempotency-key", "hostile")
	var reply []byte
	return conn.Invoke(ctx, paymentsv1.PaymentService_CreatePayment_FullMethodName, message, &reply, grpc.ForceCodec(bytesCodec{}))
}

// bytesCodec sends and receives messages as they are.
type bytesCodec struct{}

// Name implements [encoding.Codec]: the server is to take it for protobuf.
func (bytesCodec) Name() string { return "proto" }

// Marshal implements [encoding.Codec].
func (bytesCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

// Unmarshal implements [encoding.Codec].
func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}
