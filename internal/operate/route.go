package operate

import "regexp"

// Transport decides the form of a stored response.
type Transport string

// The transports of the middleware.
const (
	OverHTTP Transport = "http"
	OverGRPC Transport = "grpc"
)

// The forms of routes. A method without a package looks like a path of two parts, as in
// /Greeter/SayHello and /v1/payments.
var (
	methodOfPackage = regexp.MustCompile(`^/[A-Za-z_]\w*(\.[A-Za-z_]\w*)+/[A-Za-z_]\w*$`)
	methodOrPath    = regexp.MustCompile(`^/[A-Za-z_]\w*/[A-Za-z_]\w*$`)
)

// Likely is the transport of a route by its name, "" if it can be either.
func Likely(route string) Transport {
	switch {
	case methodOfPackage.MatchString(route):
		return OverGRPC
	case methodOrPath.MatchString(route):
		return ""
	}
	return OverHTTP
}
