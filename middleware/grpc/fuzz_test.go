package idemgrpc

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// What was stored may come from an operator, or from a store gone wrong: it is
// decoded or refused, and what is decoded has one form.
func FuzzDecodeOutcome(f *testing.F) {
	for _, o := range []struct {
		err      error
		messages []proto.Message
	}{
		{nil, nil},
		{nil, []proto.Message{&walletv1.TransferResponse{Id: "t1", Amount: 1250}}},
		{nil, []proto.Message{&walletv1.TransferResponse{}, &walletv1.TransferResponse{Id: "t2"}}},
		{status.Error(codes.NotFound, "account unknown"), nil},
		{status.Error(codes.Internal, "é"), []proto.Message{&walletv1.TransferResponse{}}},
	} {
		r, err := Outcome(o.err, o.messages...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.Status, r.Body)
	}
	f.Add(13, []byte(nil))
	f.Add(201, []byte(`{"id":"p1"}`))
	f.Add(0, []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add(5, []byte("\x08\x05"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		o, err := decode(&idem.Response{Status: code, Body: body})
		if err != nil || len(body) == 0 {
			return
		}
		r, err := encode(o, nil)
		if err != nil || r.Status != code {
			t.Fatalf("encode(%v) = %v, %v, want status %d", o, r, err, code)
		}
		again, err := decode(&r)
		if err != nil || !proto.Equal(again, o) {
			t.Fatalf("decode(encode(%v)) = %v, %v, want the same", o, again, err)
		}
	})
}

// The canonical form is a serialisation of the message, and its own form.
func FuzzAppendCanonical(f *testing.F) {
	f.Add([]byte("\x08\x01\xba\x01\x04\x0a\x00\x12\x00\x8a\x01\x02\x08\x01\xf8\x07\x01"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, back := new(walletv1.Kinds), new(walletv1.Kinds)
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		form, err := AppendCanonical(nil, m)
		if err != nil {
			return // too deep
		}
		if err := proto.Unmarshal(form, back); err != nil {
			t.Fatalf("the form %x is no message: %v", form, err)
		}
		again, err := AppendCanonical(nil, back)
		if err != nil || !bytes.Equal(form, again) {
			t.Fatalf("form of the form = %x, %v, want %x", again, err, form)
		}
	})
}
