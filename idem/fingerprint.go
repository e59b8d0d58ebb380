package idem

import (
	"cmp"
	"fmt"
	"mime"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/internal/digest"
)

// FingerprintVersion is the version of the fingerprints that this build makes. Older
// versions stay computable, so keys survive an upgrade.
const FingerprintVersion = 1

// Fingerprinter computes the fingerprint of a request in a version. The engine calls it
// again with an older version if the stored record has one. It returns
// ErrFingerprintVersion for a version that it does not know.
type Fingerprinter func(version uint8) (driver.Fingerprint, error)

// NewFingerprint hashes a transport-qualified operation ("http POST /v1/pay") and the
// canonical parts of a request, each with its length.
func NewFingerprint(version uint8, operation string, parts ...string) (driver.Fingerprint, error) {
	if version != 1 {
		return driver.Fingerprint{}, fmt.Errorf("%w: %d", ErrFingerprintVersion, version)
	}
	return driver.Fingerprint{Version: 1, Sum: digest.Of("idemkeeper fingerprint 1\x00"+operation, parts...)}, nil
}

// FingerprintOf is for callers of [Engine.Do]. It makes the fingerprint of an operation
// ("settle invoice") and of the canonical parts that tell two requests with one key apart.
func FingerprintOf(operation string, parts ...string) Fingerprinter {
	return func(version uint8) (driver.Fingerprint, error) {
		return NewFingerprint(version, "direct "+operation, parts...)
	}
}

// RequestParts is the identity of an HTTP-like request. Everything else in the request may
// differ between retries.
type RequestParts struct {
	// Operation names transport, method and escaped path, as in "http POST /v1/payments".
	// The application may put something else in place of method and path.
	Operation string
	// Query is the query as it was sent, without "?".
	Query string
	// ContentType and ContentEncoding are the headers as they were sent. Several lines are
	// joined by ", ".
	ContentType     string
	ContentEncoding string
	// Header holds the headers that the route counts as part of the request, by their
	// canonical names, with all lines of each. A header that was not sent does not count, with or
	// without an entry. So a route may begin to compare a header, and keys of clients that never
	// send it stay theirs. By default the map is nil, and requests with other headers are the same.
	Header map[string][]string
	// Body is the body as it was sent. It is still encoded if ContentEncoding says so.
	Body []byte
}

// RequestFingerprint computes the fingerprint of a request. It is [NewFingerprint] over
// these parts. Version 1 covers:
//
//   - the operation;
//   - the query: its pairs, decoded, sorted by name; pairs of one name stay in
//     their order;
//   - the media type: in lower case, with its parameters sorted, the charset
//     in lower case;
//   - the content encoding, in lower case, if there is one;
//   - the headers in Header, and no others; in particular not the host;
//   - the body.
//
// Content-encoded bodies are compared byte by byte, all others by their meaning. Two texts of JSON
// (application/json and every +json type) are the same if they differ only in insignificant space,
// in the order of object members, or in the escapes of a string. Numbers keep their exact text, so 1
// and 1.0 differ. application/x-www-form-urlencoded is compared like a query. For multipart/form-data the headers and
// the content of the parts count, in their order, and the boundary does not. Every other body
// is compared byte by byte, and so is a malformed form or query.
//
// A client that compresses has to send the very same bytes with a retry, because compressors
// may write the time into their header. A retry with other bytes is refused as
// CodeKeyReused. It never runs twice.
//
// The error is a [*Refusal] with CodeBodyInvalid if a JSON body is malformed, or it wraps
// ErrFingerprintVersion. An empty body of any media type is accepted.
func RequestFingerprint(version uint8, r RequestParts) (driver.Fingerprint, error) {
	encoding := strings.ToLower(strings.TrimSpace(r.ContentEncoding))
	if encoding == "identity" {
		encoding = ""
	}
	media, body, err := canonicalBody(r.ContentType, encoding, r.Body)
	if err != nil {
		refusal := refuse(CodeBodyInvalid, fmt.Errorf("idem: %w", err))
		refusal.Advice = strings.TrimSuffix(refusal.Code.Detail(), ".") + ": " + err.Error() + "." // err holds nothing of the body
		return driver.Fingerprint{}, refusal
	}
	return NewFingerprint(version, r.Operation, canonicalPairs(r.Query), media, encoding, canonicalHeader(r.Header), string(body))
}

// canonicalBody returns a media type and a body of it in canonical form. A media type that
// is malformed comes back as it was sent.
func canonicalBody(contentType, encoding string, body []byte) (media string, canonical []byte, err error) {
	if contentType == "application/json" && encoding == "" && len(body) > 0 { // the usual case, without the work of the rest
		canonical, err = canonicalJSON(nil, body)
		return contentType, canonical, err
	}
	sent := strings.TrimSpace(contentType)
	base, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return sent, body, nil //nolint:nilerr // the body is compared byte by byte
	}
	if charset, ok := params["charset"]; ok {
		params["charset"] = strings.ToLower(charset)
	}
	media = cmp.Or(mime.FormatMediaType(base, params), sent)
	switch boundary := params["boundary"]; {
	case encoding != "" || len(body) == 0:
	case base == "application/json" || strings.HasSuffix(base, "+json"):
		body, err = canonicalJSON(nil, body)
	case base == "application/x-www-form-urlencoded":
		body = []byte(canonicalPairs(string(body)))
	case base == "multipart/form-data" && boundary != "":
		if parts, ok := canonicalMultipart(body, boundary); ok {
			delete(params, "boundary")
			media, body = mime.FormatMediaType(base, params)+" in parts", parts
		}
	}
	return media, body, err
}
