package answer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// maxCode is the greatest gRPC code, UNAUTHENTICATED.
const maxCode = 16

// transportOf decides by the status. 0 to 16 are gRPC codes and 200 to 599 are HTTP.
// If the route's name or --transport says otherwise, FILE is wrong or for another
// route.
func (ans *Answer) transportOf(route string, told operate.Transport) (operate.Transport, error) {
	var is operate.Transport
	switch {
	case ans.status >= 0 && ans.status <= maxCode:
		is = operate.OverGRPC
	case ans.status >= 200 && ans.status <= 599:
		is = operate.OverHTTP
	default:
		return "", fmt.Errorf("status %d: want an HTTP status from 200 to 599, or a gRPC code from 0 (OK) to %d", ans.status, maxCode)
	}
	switch name := operate.Likely(route); {
	case told != "" && told != is:
		return "", fmt.Errorf("status %d does not fit --transport %s: %s", ans.status, told, statuses)
	case told == "" && name == operate.OverGRPC && is != name:
		return "", fmt.Errorf("status %d: the record's route looks like a gRPC method, want a code from 0 (OK) to %d, or give --transport http", ans.status, maxCode)
	case told == "" && name == operate.OverHTTP && is != name:
		return "", fmt.Errorf("status %d: the record's route looks like HTTP, want a status from 200 to 599, or give --transport grpc", ans.status)
	}
	return is, nil
}

const statuses = "HTTP has 200 to 599, gRPC 0 to 16"

// Response is the stored response for a route. told is the transport of --transport, or "".
// allow are the headers that the route replays beside the usual ones.
func (ans *Answer) Response(route string, told operate.Transport, allow []string) (idem.Response, error) {
	is, err := ans.transportOf(route, told)
	if err != nil {
		return idem.Response{}, err
	}
	if is == operate.OverGRPC {
		return ans.overGRPC(allow)
	}
	return ans.overHTTP(allow)
}

func (ans *Answer) overHTTP(allow []string) (idem.Response, error) {
	if ans.messageType != "" {
		return idem.Response{}, errors.New("message_type is for gRPC, and the status is for HTTP")
	}
	body := ans.bytes
	if ans.text != nil {
		body = []byte(*ans.text)
	}
	if len(body) > 0 && (ans.status == http.StatusNoContent || ans.status == http.StatusNotModified) {
		return idem.Response{}, fmt.Errorf("status %d has no body", ans.status)
	}
	header, err := ans.fields(&fieldsOfHTTP, allow)
	if values := header["Content-Type"]; err == nil && len(values) > 0 && len(body) > 0 && header["Content-Encoding"] == nil {
		err = operate.CheckJSON(values[0], body)
	}
	return idem.Response{Status: ans.status, Header: header, Body: body}, err
}

// fieldRules are a transport's rules for headers.
type fieldRules struct {
	replayed  []string // by default, a service can replay more
	canonical func(string) string
	name      *regexp.Regexp // of a canonical name
	never     []string       // never replayed, because they belong to one exchange or one caller
	tab       bool           // values may contain tabs
}

var fieldsOfHTTP = fieldRules{
	replayed:  []string{"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Location"},
	canonical: http.CanonicalHeaderKey,
	name:      headerName,
	never: []string{
		"Authentication-Info", "Authorization", "Connection", "Content-Length", "Cookie", "Date", "Idempotent-Replayed", "Keep-Alive",
		"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie",
		"Set-Cookie2", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate",
	},
	tab: true,
}

// IsHeaderName reports whether a text can be the name of a header (RFC 9110, section 5.6.2).
func IsHeaderName(name string) bool { return headerName.MatchString(name) }

var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

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

// binaryField ends the names of metadata with binary values.
const binaryField = "-bin"

// check accepts a canonical name that a service could replay.
func (f *fieldRules) check(name string) error {
	switch {
	case !f.name.MatchString(name), name == binaryField:
		return fmt.Errorf("%q is not the name of a header", name)
	case slices.Contains(f.never, name), strings.HasPrefix(name, "grpc-"):
		return fmt.Errorf("header %s belongs to one exchange and is never replayed", name)
	}
	return nil
}

// value is the stored form of a header's value.
func (f *fieldRules) value(name, v string) (string, error) {
	if strings.ContainsFunc(v, func(r rune) bool { return (r < ' ' || r > '~') && (r != '\t' || !f.tab) }) {
		return "", fmt.Errorf("header %s has a value that is not printable ASCII", name)
	}
	if f.tab || !strings.HasSuffix(name, binaryField) {
		return v, nil
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "="))
	if err != nil {
		return "", fmt.Errorf("header %s is binary, want base64 as on the wire", name)
	}
	return string(data), nil
}

// fields returns the headers in their stored form.
func (ans *Answer) fields(f *fieldRules, allow []string) (map[string][]string, error) {
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
			return nil, fmt.Errorf("header %q is not replayed; replayed are %s; see --allow-header", given, strings.Join(known, ", "))
		case twice:
			return nil, fmt.Errorf("header %s appears twice", name)
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

// unnamed is the type of a message without message_type. Package idemgrpc replaces
// an unknown type by the return type of the method.
const unnamed = "idemctl.Unnamed"

func (ans *Answer) overGRPC(allow []string) (idem.Response, error) {
	header, err := ans.fields(&fieldsOfGRPC, allow)
	if err != nil {
		return idem.Response{}, err
	}
	var r idem.Response
	switch {
	case ans.status == 0 && ans.text != nil:
		err = errors.New("status 0 is gRPC's OK: want body_base64 with the protobuf message in place of body")
	case ans.status == 0:
		r, err = storedMessage(ans.messageType, ans.bytes)
	case ans.binary || ans.messageType != "":
		err = fmt.Errorf("gRPC code %d comes without a message: want body with the text of the status", ans.status)
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

// storedMessage is the stored form of a method's result.
func storedMessage(name string, message []byte) (idem.Response, error) {
	if name == "" {
		name = unnamed
	}
	desc, err := emptyType(protoreflect.FullName(name))
	if err != nil {
		return idem.Response{}, err
	}
	m := dynamicpb.NewMessage(desc)
	if err := proto.Unmarshal(message, m); err != nil { // it keeps all fields as unknown ones
		return idem.Response{}, errors.New("body_base64 is not a protobuf message")
	}
	return idemgrpc.Outcome(nil, m)
}

// emptyType is a message type without fields.
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

// storedStatus is the stored form of a method's error.
func storedStatus(code int, text string) (idem.Response, error) {
	return idemgrpc.Outcome(status.Error(codes.Code(code), text))
}
