package main

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/idemkeeper/idemkeeper/idem"
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
