package idemgrpc

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// The body of an [idem.Response] of gRPC is an [idemkeeperv1.Outcome]. The response's
// Status is the code. An error without a body stands for a bare code.

var (
	errNotReplayable = errors.New("the stored outcome is not one of this method")
	errNoMessage     = status.Error(codes.Internal, "the method returned no message")
	errBadMessage    = status.Error(codes.Internal, "the method's message cannot be encoded")
)

// Outcome makes the stored form of a method's answer, for a [idem.Resolver] of operations
// over gRPC. Give it a nil error and the message, the messages of a server stream, or the
// error of the method.
func Outcome(err error, messages ...proto.Message) (idem.Response, error) {
	o := new(idemkeeperv1.Outcome)
	for _, m := range messages {
		packed, err := pack(m)
		if err != nil {
			return idem.Response{}, fmt.Errorf("idemgrpc: %w", err)
		}
		o.Messages = append(o.Messages, packed)
	}
	return encode(o, err)
}

// typeURL begins the name of a type in an Any.
const typeURL = "type.googleapis.com/"

// pack makes a message ready to be stored. The error is the status of gRPC itself for such
// a message. pack finds it early enough for it to be the outcome.
func pack(answer any) (*anypb.Any, error) {
	switch msg := answer.(type) {
	case proto.Message:
		packed, err := anypb.New(msg)
		if err != nil {
			return nil, errBadMessage
		}
		return packed, nil
	case protoadapt.MessageV1:
		wire, err := serialise(msg)
		if err != nil {
			return nil, errBadMessage
		}
		return &anypb.Any{TypeUrl: typeURL + string(descriptorOf(msg).FullName()), Value: wire}, nil
	}
	return nil, errNoMessage
}

// encode ends an outcome with the handler's error, if there is one, and encodes it.
func encode(o *idemkeeperv1.Outcome, failure error) (idem.Response, error) {
	if failure != nil {
		st := statusOf(failure).Proto()
		o.Code, o.Details = st.GetCode(), st.GetDetails()
		o.Text = strings.ToValidUTF8(st.GetMessage(), "\uFFFD") // gRPC sends any text, protobuf only UTF-8
	}
	body, err := proto.Marshal(o)
	if err != nil {
		err = fmt.Errorf("idemgrpc: %w", err)
	}
	return idem.Response{Status: int(o.GetCode()), Body: body}, err
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

// decode reads what encode made.
func decode(r *idem.Response) (*idemkeeperv1.Outcome, error) {
	o := new(idemkeeperv1.Outcome)
	if err := proto.Unmarshal(r.Body, o); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReplayable, err)
	}
	if len(r.Body) == 0 && r.Status != int(codes.OK) { // the handler panicked
		o.Code, o.Text = int32(r.Status), "the handler gave no answer"
	}
	ok := o.GetCode() == 0 && o.GetText() == "" && len(o.GetDetails()) == 0 || o.GetCode() > 0
	if r.Omitted || !ok || int(o.GetCode()) != r.Status || len(o.ProtoReflect().GetUnknown()) > 0 {
		return nil, errNotReplayable
	}
	return o, nil
}

// messagesOf returns the messages of a method's outcome, and its error. A unary outcome
// has one of the two. A renamed type is the method's output now. A message whose type this
// binary cannot make is sent as it is stored.
func messagesOf(o *idemkeeperv1.Outcome, m *method) (messages []any, failure, err error) {
	for _, packed := range o.GetMessages() {
		msg := newMessage(packed.MessageName())
		if msg == nil && m.desc != nil {
			msg = newMessage(m.desc.Output().FullName())
		}
		if msg == nil {
			messages = append(messages, &rawMessage{packed.GetValue()})
			continue
		}
		if err := proto.Unmarshal(packed.GetValue(), msg); err != nil {
			return nil, nil, err
		}
		messages = append(messages, msg)
	}
	failure = status.ErrorProto(&spb.Status{Code: o.GetCode(), Message: o.GetText(), Details: o.GetDetails()})
	if unary := m.desc == nil || !m.desc.IsStreamingServer(); unary && (failure == nil) != (len(messages) == 1) {
		err = errNotReplayable
	}
	return messages, failure, err
}

// replayed lists the metadata that every method stores: the names that HTTP stores too,
// without those that gRPC sets itself.
var replayed = []string{"content-language", "etag", "location"}

// pick copies the metadata of a handler that is stored.
func (x *Interceptors) pick(md metadata.MD) map[string][]string {
	kept := metadata.MD{}
	for name, values := range md {
		if x.replay.Has(name) {
			kept.Append(name, values...)
		}
	}
	return kept
}

// marked returns stored metadata with the mark of a stored outcome. The mark is in header
// and trailer, because a connection can break between the header and the outcome. Names
// and values are checked once more, because a resolver or an operator may have made them.
func (x *Interceptors) marked(stored map[string][]string) metadata.MD {
	md := metadata.MD{}
	for name, values := range stored {
		name = strings.ToLower(name)
		if !x.replay.Has(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, binarySuffix) || !strings.ContainsFunc(v, notPrintable) {
				md.Append(name, v)
			}
		}
	}
	md.Set(ReplayedMetadataKey, adapter.Marker)
	return md
}

// binarySuffix marks metadata whose values are bytes.
const binarySuffix = "-bin"

// isReplayable reports whether metadata of a name, text or binary, can be replayed.
// Content-Type is that of the protocol.
func isReplayable(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), binarySuffix)
	return isMetadataName(name) && name != "content-type"
}

// metadataName is the rule of gRPC's wire format.
var metadataName = regexp.MustCompile(`^[0-9a-z_.-]+$`)

// isMetadataName reports whether s names text metadata of the application.
func isMetadataName(s string) bool {
	return metadataName.MatchString(s) && !strings.HasSuffix(s, binarySuffix) && !strings.HasPrefix(s, "grpc-")
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }
