package idemgrpc

import (
	"errors"
	"fmt"
	"math"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The body of an [idem.Response] of gRPC is a protobuf message with these fields. The
// response's Status is the code. An error without a body stands for a bare code.
const (
	fieldMessages protowire.Number = 1 // repeated google.protobuf.Any
	fieldStatus   protowire.Number = 2 // google.rpc.Status, absent for OK
)

var (
	errOutcomeEncoding = errors.New("idemgrpc: malformed stored outcome")
	errNoMessage       = status.Error(codes.Internal, "the method returned no message")
	errBadMessage      = status.Error(codes.Internal, "the method's message cannot be encoded")
)

// outcome is the end of a call: a status, and the messages before it.
type outcome struct {
	messages []*anypb.Any
	status   *spb.Status // nil for OK
}

// Outcome makes the stored form of a method's answer, for a [idem.Resolver] of operations
// over gRPC. Give it a nil error and the message, the messages of a server stream, or the
// error of the method.
func Outcome(err error, messages ...proto.Message) (idem.Response, error) {
	var o outcome
	for _, m := range messages {
		if err := o.add(m); err != nil {
			return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
		}
	}
	if err != nil {
		o.status = statusOf(err).Proto()
	}
	return o.response()
}

// add appends a message. The error is the status of gRPC itself for such a message. It is
// found early enough to be the outcome.
func (o *outcome) add(answer any) error {
	msg := messageOf(answer)
	if msg == nil {
		return errNoMessage
	}
	packed, err := anypb.New(msg)
	if err != nil {
		return errBadMessage
	}
	o.messages = append(o.messages, packed)
	return nil
}

// statusOf makes a status of a handler's error, as gRPC does.
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
	var body []byte
	for _, m := range o.messages {
		encoded, err := proto.Marshal(m)
		if err != nil {
			return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
		}
		body = appendField(body, fieldMessages, encoded)
	}
	if o.status == nil {
		return idem.Response{Status: int(codes.OK), Body: body}, nil
	}
	st := proto.CloneOf(o.status)
	st.Message = strings.ToValidUTF8(st.GetMessage(), "\uFFFD") // gRPC sends any text, protobuf only UTF-8
	encoded, err := proto.Marshal(st)
	if err != nil {
		return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
	}
	return idem.Response{Status: int(st.GetCode()), Body: appendField(body, fieldStatus, encoded)}, nil
}

func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// decodeOutcome reads what response made.
func decodeOutcome(r *idem.Response) (outcome, error) {
	var o outcome
	if r.Omitted || r.Status < 0 || r.Status > math.MaxInt32 {
		return o, errOutcomeEncoding
	}
	if len(r.Body) == 0 && r.Status != int(codes.OK) { // the handler panicked
		o.status = &spb.Status{Code: int32(r.Status), Message: "the handler gave no answer"}
	}
	for b := r.Body; len(b) > 0; {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 || kind != protowire.BytesType {
			return outcome{}, errOutcomeEncoding
		}
		value, n := protowire.ConsumeBytes(b[tag:])
		if n < 0 {
			return outcome{}, errOutcomeEncoding
		}
		b = b[tag+n:]
		var field proto.Message
		switch {
		case number == fieldMessages:
			packed := new(anypb.Any)
			o.messages, field = append(o.messages, packed), packed
		case number == fieldStatus && o.status == nil:
			o.status = new(spb.Status)
			field = o.status
		default:
			return outcome{}, errOutcomeEncoding
		}
		if err := proto.Unmarshal(value, field); err != nil {
			return outcome{}, fmt.Errorf("%w: %w", errOutcomeEncoding, err)
		}
	}
	if int(o.status.GetCode()) != r.Status || o.status != nil && r.Status == int(codes.OK) {
		return outcome{}, errOutcomeEncoding
	}
	return o, nil
}

// decode returns the messages. A renamed type is the method's output now.
func (o *outcome) decode(m *method) ([]proto.Message, error) {
	var messages []proto.Message
	for _, packed := range o.messages {
		msg := newMessage(packed.MessageName())
		if msg == nil && m.desc != nil {
			msg = newMessage(m.desc.Output().FullName())
		}
		if msg == nil {
			return nil, errNotReplayable
		}
		if err := proto.Unmarshal(packed.GetValue(), msg); err != nil {
			return nil, err
		}
		messages = append(messages, msg)
	}
	return messages, nil
}
