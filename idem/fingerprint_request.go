package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
)

// RequestParts is what makes an HTTP-like request the one it is. Everything
// else about it may differ between retries.
type RequestParts struct {
	// Operation names transport, method and escaped path, or what the
	// application put in place of the latter two: "http POST /v1/payments".
	Operation string
	// Query is the query as it was sent, without "?".
	Query string
	// ContentType and ContentEncoding are the headers as they were sent;
	// several lines joined by ", ".
	ContentType     string
	ContentEncoding string
	// Body is the body as it was sent: still encoded where ContentEncoding
	// says so.
	Body []byte
}

// RequestFingerprint computes the fingerprint of a request. Version 1 covers:
//
//   - the operation;
//   - the query: its pairs, decoded, sorted by name; pairs of one name stay in
//     their order;
//   - the media type: in lower case, with its parameters sorted, the charset
//     in lower case;
//   - the content encoding, in lower case, where there is one;
//   - the body: [CanonicalJSON] for application/json and every +json type that
//     is not content-encoded, else its bytes.
//
// A client that compresses, or sends multipart/form-data, has to send the very
// same bytes with a retry: compressors may write the time into their header,
// and multipart boundaries are random unless the client fixes them. Such a
// retry is refused as CodeKeyReused; it never runs twice.
//
// The error is a [*Refusal] with CodeBodyInvalid where a JSON body is not
// well-formed, or wraps ErrFingerprintVersion. An empty body is taken as it
// is, whatever its media type.
//
// It is the same as [NewFingerprint] over these parts in this order, without
// another copy of the body.
func RequestFingerprint(version uint8, r RequestParts) (Fingerprint, error) {
	if version != 1 {
		return Fingerprint{}, fmt.Errorf("%w: %d", ErrFingerprintVersion, version)
	}
	mediaType, isJSON := canonicalMediaType(r.ContentType)
	encoding := canonicalEncoding(r.ContentEncoding)

	c := canonicalizers.Get().(*canonicalizer)
	defer c.free()
	body := r.Body
	if isJSON && encoding == "" && len(body) > 0 {
		out, err := c.canonical(c.out[:0], body)
		c.out, c.dst = out, nil
		if err != nil {
			return Fingerprint{}, refuse(CodeBodyInvalid, err)
		}
		body = out
	}
	purpose := fingerprintPurpose + r.Operation
	head := appendPart(c.scratch[:0], purpose)
	for _, p := range [...]string{canonicalQuery(r.Query), mediaType, encoding} {
		head = appendPart(head, p)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(len(body)))
	c.scratch = head

	h := sha256.New()
	h.Write(head)
	h.Write(body)
	f := Fingerprint{Version: version}
	h.Sum(f.Sum[:0])
	return f, nil
}

// canonicalMediaType also tells whether it is JSON. What is not a media type
// is kept as it was sent.
func canonicalMediaType(s string) (string, bool) {
	if s == "" || s == "application/json" {
		return s, s != ""
	}
	base, params, err := mime.ParseMediaType(s)
	if err != nil {
		return strings.TrimSpace(s), false
	}
	if charset, ok := params["charset"]; ok {
		params["charset"] = strings.ToLower(charset)
	}
	isJSON := base == "application/json" || strings.HasSuffix(base, "+json")
	if full := mime.FormatMediaType(base, params); full != "" {
		return full, isJSON
	}
	return strings.TrimSpace(s), isJSON
}

// canonicalEncoding returns "" for a body that is not encoded.
func canonicalEncoding(s string) string {
	if s = strings.ToLower(strings.TrimSpace(s)); s == "identity" {
		return ""
	}
	return s
}

// canonicalQuery writes every pair in one way, sorted by name. A pair that
// net/url refuses is kept as it was sent; since it is no well-formed pair it
// cannot be taken for one.
func canonicalQuery(raw string) string {
	if raw == "" {
		return ""
	}
	type pair struct{ name, text string }
	var pairs []pair
	for s := range strings.SplitSeq(raw, "&") {
		if s == "" {
			continue
		}
		name, value, _ := strings.Cut(s, "=")
		n, err := url.QueryUnescape(name)
		v, err2 := url.QueryUnescape(value)
		if err != nil || err2 != nil || strings.Contains(s, ";") {
			pairs = append(pairs, pair{s, s})
			continue
		}
		pairs = append(pairs, pair{n, url.QueryEscape(n) + "=" + url.QueryEscape(v)})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	for _, p := range pairs {
		b.WriteString(p.text)
		b.WriteByte('&')
	}
	return b.String()
}
