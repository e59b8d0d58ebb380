package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

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
