package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// transport is how a service is asked, which decides what a stored response
// looks like.
type transport string

const (
	overHTTP transport = "http"
	overGRPC transport = "grpc"
)

// maxCode is the greatest gRPC code, UNAUTHENTICATED.
const maxCode = 16

// What routes look like. A method without a package is written as a path of two
// parts is: /Greeter/SayHello, /v1/payments.
var (
	methodOfPackage = regexp.MustCompile(`^/[A-Za-z_]\w*(\.[A-Za-z_]\w*)+/[A-Za-z_]\w*$`)
	methodOrPath    = regexp.MustCompile(`^/[A-Za-z_]\w*/[A-Za-z_]\w*$`)
)

// likely is the transport of a route, as its name tells; "" where it can be
// either.
func likely(route string) transport {
	switch {
	case methodOfPackage.MatchString(route):
		return overGRPC
	case methodOrPath.MatchString(route):
		return ""
	}
	return overHTTP
}

// transportOf decides by the status, which is of one transport only: 0 to 16 are
// gRPC's codes, 200 to 599 are HTTP's. Where the route's name, or who decides,
// says another one, FILE is of another route, or wrong.
func (ans *answer) transportOf(route string, told transport) (transport, error) {
	var is transport
	switch {
	case ans.status >= 0 && ans.status <= maxCode:
		is = overGRPC
	case ans.status >= 200 && ans.status <= 599:
		is = overHTTP
	default:
		return "", fmt.Errorf("status %d: want an HTTP status from 200 to 599, or a gRPC code from 0 (OK) to %d", ans.status, maxCode)
	}
	switch name := likely(route); {
	case told != "" && told != is:
		return "", fmt.Errorf("status %d is not of --transport %s: %s", ans.status, told, statuses)
	case told == "" && name == overGRPC && is != name:
		return "", fmt.Errorf("status %d: the record's route looks like a gRPC method, want a code from 0 (OK) to %d; --transport http if it is not", ans.status, maxCode)
	case told == "" && name == overHTTP && is != name:
		return "", fmt.Errorf("status %d: the record's route looks like one of HTTP, want a status from 200 to 599; --transport grpc if it is not", ans.status)
	}
	return is, nil
}

const statuses = "HTTP has 200 to 599, gRPC 0 to 16"

// response is what is stored for a route.
func (ans *answer) response(route string, told transport, allow []string) (idem.Response, error) {
	is, err := ans.transportOf(route, told)
	if err != nil {
		return idem.Response{}, err
	}
	if is == overGRPC {
		return ans.overGRPC(allow)
	}
	return ans.overHTTP(allow)
}

func (ans *answer) overHTTP(allow []string) (idem.Response, error) {
	if ans.messageType != "" {
		return idem.Response{}, errors.New("message_type is for gRPC, and the status is one of HTTP")
	}
	body := ans.bytes
	if ans.text != nil {
		body = []byte(*ans.text)
	}
	if len(body) > 0 && (ans.status == http.StatusNoContent || ans.status == http.StatusNotModified) {
		return idem.Response{}, fmt.Errorf("status %d has no body", ans.status)
	}
	header, err := ans.fields(&fieldsOfHTTP, allow)
	return idem.Response{Status: ans.status, Header: header, Body: body}, err
}

// fieldRules are those of a transport for headers.
type fieldRules struct {
	replayed  []string // unless the service was told to replay more (idem's design, section 6)
	canonical func(string) string
	name      *regexp.Regexp // of one that is in canonical form
	never     []string       // is replayed, whatever a service says: it belongs to one exchange or one caller
	tab       bool           // a value can have one
}

var fieldsOfHTTP = fieldRules{
	replayed:  []string{"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Location"},
	canonical: http.CanonicalHeaderKey,
	name:      token,
	never: []string{
		"Authentication-Info", "Authorization", "Connection", "Content-Length", "Cookie", "Date", "Idempotent-Replayed", "Keep-Alive",
		"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie",
		"Set-Cookie2", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate",
	},
	tab: true,
}

// token is a name of RFC 9110, section 5.6.2.
var token = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

var fieldsOfGRPC = fieldRules{
	replayed:  []string{"content-language", "etag", "location"},
	canonical: strings.ToLower,
	name:      regexp.MustCompile(`^[-_.0-9a-z]+$`),
	never: []string{
		"authentication-info", "authorization", "connection", "content-length", "content-type", "cookie", "date", "host",
		"idempotent-replayed", "keep-alive", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization",
		"proxy-connection", "set-cookie", "set-cookie2", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
		"www-authenticate",
	},
}

// binaryField is how a name ends of metadata whose values are bytes.
const binaryField = "-bin"

// check wants a name in canonical form that a service can be told to replay.
func (f *fieldRules) check(name string) error {
	switch {
	case !f.name.MatchString(name), name == binaryField:
		return fmt.Errorf("%q is not the name of a header", name)
	case slices.Contains(f.never, name), strings.HasPrefix(name, "grpc-"):
		return fmt.Errorf("header %s belongs to one exchange, and is never replayed", name)
	}
	return nil
}

// value is the stored form of one.
func (f *fieldRules) value(name, v string) (string, error) {
	if strings.ContainsFunc(v, func(r rune) bool { return (r < ' ' || r > '~') && (r != '\t' || !f.tab) }) {
		return "", fmt.Errorf("header %s has a character in its value that is not printable ASCII", name)
	}
	if f.tab || !strings.HasSuffix(name, binaryField) {
		return v, nil
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "="))
	if err != nil {
		return "", fmt.Errorf("header %s is binary: want base64, as on the wire", name)
	}
	return string(data), nil
}

// fields are the headers in their stored form.
func (ans *answer) fields(f *fieldRules, allow []string) (map[string][]string, error) {
	known := slices.Clone(f.replayed)
	for _, name := range allow {
		name = f.canonical(name)
		if err := f.check(name); err != nil {
			return nil, fmt.Errorf("--allow-header: %w", err)
		}
		known = append(known, name)
	}
	fields := make(map[string][]string, len(ans.headers))
	for given, values := range ans.headers {
		name := f.canonical(given)
		if err := f.check(name); err != nil {
			return nil, err
		}
		switch _, twice := fields[name]; {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("header %q is not among those that are replayed: %s; see --allow-header", given, strings.Join(known, ", "))
		case twice:
			return nil, fmt.Errorf("header %s is there twice", name)
		case len(values) == 0:
			return nil, fmt.Errorf("header %s has no value", name)
		}
		for _, v := range values {
			stored, err := f.value(name, v)
			if err != nil {
				return nil, err
			}
			fields[name] = append(fields[name], stored)
		}
	}
	return fields, nil
}

// unnamed is the type of a message that FILE does not name: package idemgrpc
// takes a type that it does not know for the one that the method returns.
const unnamed = "idemctl.Unnamed"

func (ans *answer) overGRPC(allow []string) (idem.Response, error) {
	header, err := ans.fields(&fieldsOfGRPC, allow)
	if err != nil {
		return idem.Response{}, err
	}
	var r idem.Response
	switch {
	case ans.status == 0 && ans.text != nil:
		err = errors.New("status 0 is gRPC's OK: want body_base64, the protobuf message, in place of body")
	case ans.status == 0:
		r, err = storedMessage(ans.messageType, ans.bytes)
	case ans.binary || ans.messageType != "":
		err = fmt.Errorf("gRPC code %d comes without a message: want body, the status's text", ans.status)
	default:
		text := ""
		if ans.text != nil {
			text = *ans.text
		}
		r, err = storedStatus(ans.status, text)
	}
	r.Header = header
	return r, err
}

// storedMessage is the stored form of a message that a method returned.
func storedMessage(name string, message []byte) (idem.Response, error) {
	if name == "" {
		name = unnamed
	}
	desc, err := emptyType(protoreflect.FullName(name))
	if err != nil {
		return idem.Response{}, err
	}
	m := dynamicpb.NewMessage(desc)
	if err := proto.Unmarshal(message, m); err != nil { // keeps all fields, as unknown ones
		return idem.Response{}, errors.New("body_base64 is not a protobuf message")
	}
	return idemgrpc.Outcome(nil, m)
}

// emptyType is a message type of a name, of which nothing else is known.
func emptyType(name protoreflect.FullName) (protoreflect.MessageDescriptor, error) {
	if !name.IsValid() {
		return nil, fmt.Errorf("message_type %q is not the full name of a message", string(name))
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("idemctl.proto"), Package: new(string(name.Parent())), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new(string(name.Name()))}},
	}, new(protoregistry.Files))
	if err != nil {
		return nil, fmt.Errorf("message_type %q: %w", string(name), err)
	}
	return file.Messages().Get(0), nil
}

// storedStatus is the stored form of an error that a method returned: behind
// what holds no message comes its google.rpc.Status.
func storedStatus(code int, text string) (idem.Response, error) {
	r, err := idemgrpc.Outcome(nil)
	if err != nil {
		return r, err
	}
	r.Status = code
	r.Body, err = proto.MarshalOptions{}.MarshalAppend(r.Body, &spb.Status{Code: int32(code), Message: text})
	return r, err
}
