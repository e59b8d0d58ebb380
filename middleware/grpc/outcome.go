package idemgrpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The body of an [idem.Response] of gRPC, version 1; its Status is the code.
// Lengths and counts are varints in their shortest form:
//
//	version (1 byte) | length type name | count { length message } | google.rpc.Status
//
// The status takes what is left and is empty for OK; the type name is empty
// where there is no message. An empty body stands for a bare code.
const outcomeVersion = 1

var errOutcomeEncoding = errors.New("idemgrpc: malformed stored outcome")

// outcome is what a call ended with. All messages are of one type.
type outcome struct {
	typeName protoreflect.FullName
	messages [][]byte
	status   *spb.Status // nil: OK
}

// Outcome makes the stored form of what a method answers, for a
// [idem.Resolver] whose operations come over gRPC: err nil and the message, the
// messages of a server stream, or the error that the method would have
// returned.
func Outcome(err error, messages ...proto.Message) (idem.Response, error) {
	var o outcome
	for i, m := range messages {
		name := m.ProtoReflect().Descriptor().FullName()
		if i > 0 && name != o.typeName {
			return idem.Response{}, fmt.Errorf("idemgrpc: messages of types %s and %s in one outcome", o.typeName, name)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
		}
		o.typeName, o.messages = name, append(o.messages, b)
	}
	if err != nil {
		o.status = statusOf(err).Proto()
	}
	return o.response()
}

// statusOf is what gRPC makes of a handler's error, which is not nil.
func statusOf(err error) *status.Status {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	if s.Code() == codes.OK {
		return status.New(codes.Unknown, err.Error())
	}
	return s
}

// response encodes the outcome.
func (o *outcome) response() (idem.Response, error) {
	size := 0
	for _, m := range o.messages {
		size += binary.MaxVarintLen64 + len(m)
	}
	b := appendHead(size, o.typeName, len(o.messages))
	for _, m := range o.messages {
		b = binary.AppendUvarint(b, uint64(len(m)))
		b = append(b, m...)
	}
	if o.status == nil {
		return idem.Response{Status: int(codes.OK), Body: b}, nil
	}
	st := o.status
	if valid := strings.ToValidUTF8(st.GetMessage(), "\uFFFD"); valid != st.GetMessage() { // gRPC sends such a text, protobuf cannot
		st = proto.CloneOf(st)
		st.Message = valid
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, st)
	if err != nil {
		return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
	}
	return idem.Response{Status: int(st.GetCode()), Body: b}, nil
}

// appendHead returns a buffer with what comes before so many messages of a type, and
// room for size bytes more.
func appendHead(size int, typeName protoreflect.FullName, messages int) []byte {
	b := append(make([]byte, 0, 2*binary.MaxVarintLen32+len(typeName)+size), outcomeVersion)
	b = binary.AppendUvarint(b, uint64(len(typeName)))
	b = append(b, typeName...)
	return binary.AppendUvarint(b, uint64(messages))
}

// decodeOutcome reads what response made. It keeps references to r.Body, and
// allocates in proportion to it at most.
func decodeOutcome(r *idem.Response) (outcome, error) {
	if r.Omitted || r.Status < 0 || r.Status > math.MaxInt32 {
		return outcome{}, errOutcomeEncoding
	}
	if len(r.Body) == 0 { // what the engine knows of a handler that panicked
		if r.Status == int(codes.OK) {
			return outcome{}, errOutcomeEncoding
		}
		return outcome{status: &spb.Status{Code: int32(r.Status), Message: "the handler gave no answer"}}, nil
	}
	if r.Body[0] != outcomeVersion {
		return outcome{}, errOutcomeEncoding
	}
	d := outcomeDecoder{rest: r.Body[1:]}
	o := outcome{typeName: protoreflect.FullName(d.bytes())}
	if n := d.uvarint(); n > uint64(len(d.rest)) {
		d.bad = true
	} else if n > 0 {
		o.messages = make([][]byte, n)
		for i := range o.messages {
			o.messages[i] = d.bytes()
		}
	}
	if d.bad || len(o.messages) > 0 && !o.typeName.IsValid() || len(o.messages) == 0 && o.typeName != "" {
		return outcome{}, errOutcomeEncoding
	}
	if len(d.rest) > 0 {
		o.status = new(spb.Status)
		if err := proto.Unmarshal(d.rest, o.status); err != nil {
			return outcome{}, fmt.Errorf("%w: %w", errOutcomeEncoding, err)
		}
	}
	if int(o.status.GetCode()) != r.Status || o.status != nil && r.Status == int(codes.OK) {
		return outcome{}, errOutcomeEncoding
	}
	return o, nil
}

// outcomeDecoder reads from rest. After the first fault bad is set.
type outcomeDecoder struct {
	rest []byte
	bad  bool
}

func (d *outcomeDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 { // cut off, too long, or not the shortest form
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *outcomeDecoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}
