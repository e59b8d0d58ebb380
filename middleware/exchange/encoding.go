package exchange

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// This file is about stored responses that were compressed inside of the middleware. The client of
// a repeat may accept other codings than the first one did.

var (
	errNotAccepted = errors.New("the client does not accept the content coding of the stored response")
	errTooLong     = errors.New("the stored response is longer than the policy keeps in memory (MaxResponseHeld) without its content coding")
)

// ofEncoded lists the headers that are wrong for a body without its coding.
var ofEncoded = []string{"Content-Digest", "Content-Encoding", "Content-Length", "Content-Md5", "Content-Range", "Digest", "Repr-Digest"}

// acceptable returns a stored response in a form that the client accepts. It is r itself, or r
// without gzip if that has at most limit bytes. A client without Accept-Encoding accepts any coding
// (RFC 9110, section 12.5.3), but few of them can read gzip.
func acceptable(r *idem.Response, request http.Header, limit int64) (*idem.Response, error) {
	codings := codingsOf(r)
	if len(codings) == 0 || len(r.Body) == 0 || !bodyAllowed(r.Status) {
		return r, nil
	}
	accept, asked := request["Accept-Encoding"]
	zipped := len(codings) == 1 && isGzip(codings[0]) && r.Status != http.StatusPartialContent
	switch {
	case !asked && !zipped:
		return r, nil
	case asked && !slices.ContainsFunc(codings, func(c string) bool { return !accepts(accept, c) }):
		return r, nil
	case !zipped:
		return nil, fmt.Errorf("%w: %q", errNotAccepted, codings)
	}
	body, err := unzip(r.Body, limit)
	if err != nil {
		return nil, err
	}
	plain := *r
	plain.Body, plain.Header = body, maps.Clone(r.Header)
	for name, values := range r.Header {
		switch name := http.CanonicalHeaderKey(name); {
		case slices.Contains(ofEncoded, name):
			delete(plain.Header, name)
		case name == "Etag" && len(values) == 1 && strings.HasPrefix(values[0], `"`): // it named the other form
			plain.Header[name] = []string{"W/" + values[0]}
		}
	}
	return &plain, nil
}

// codingsOf returns the content codings of a stored response. A resolver may have spelled the
// header in its own way.
func codingsOf(r *idem.Response) (codings []string) {
	for name, values := range r.Header {
		if http.CanonicalHeaderKey(name) == "Content-Encoding" {
			codings = append(codings, listed(values)...)
		}
	}
	return slices.DeleteFunc(codings, func(c string) bool { return c == "identity" })
}

func unzip(body []byte, limit int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the stored response is not what its content coding says: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the stored response is not what its content coding says: %w", err)
	case int64(len(plain)) > limit:
		return nil, errTooLong
	}
	return plain, nil
}

func isGzip(coding string) bool { return coding == "gzip" || coding == "x-gzip" }

// accepts reports whether an Accept-Encoding has a coding, with a weight above 0.
func accepts(header []string, coding string) bool {
	rest := false
	for _, member := range listed(header) {
		name, params, _ := strings.Cut(member, ";")
		name = strings.TrimSpace(name)
		switch {
		case name == coding, isGzip(name) && isGzip(coding):
			return weighs(params)
		case name == "*":
			rest = weighs(params)
		}
	}
	return rest
}

// weighs reports whether the weight in the parameters is above 0. A weight that cannot be read is 0.
func weighs(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		if name, value, _ := strings.Cut(param, "="); strings.TrimSpace(name) == "q" {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err == nil && q > 0
		}
	}
	return true
}

// listed returns the members of a header with lists, in small letters.
func listed(values []string) []string {
	var members []string
	for member := range strings.SplitSeq(strings.ToLower(strings.Join(values, ",")), ",") {
		if member = strings.TrimSpace(member); member != "" {
			members = append(members, member)
		}
	}
	return members
}

// varies says that the form of a response depends on Accept-Encoding.
func varies(h http.Header) {
	if vary := listed(h["Vary"]); !slices.Contains(vary, "accept-encoding") && !slices.Contains(vary, "*") {
		h.Add("Vary", "Accept-Encoding")
	}
}
