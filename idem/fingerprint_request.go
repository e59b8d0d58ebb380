package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"mime"
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
	// Header holds the headers that the route counts as part of the request, by
	// their canonical names, with all lines of each; a header that was not sent
	// has none. Nil by default: requests with other headers are the same one.
	Header map[string][]string
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
//   - the headers in Header, and no others; in particular not the host;
//   - the body.
//
// A body that is not content-encoded is compared by what it says:
// application/json and every +json type as [CanonicalJSON],
// application/x-www-form-urlencoded as a query is, and multipart/form-data by
// the headers and the content of its parts, in their order, whatever the boundary
// between them. Every other body is compared byte by byte, and so is a form
// that is not well-formed, or a query.
//
// A client that compresses has to send the very same bytes with a retry, because
// compressors may write the time into their header. Such a retry is refused as
// CodeKeyReused; it never runs twice.
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
	media := parseMediaType(r.ContentType)
	encoding := canonicalEncoding(r.ContentEncoding)

	c := canonicalizers.Get().(*canonicalizer)
	defer c.free()
	body := r.Body
	if encoding == "" && len(body) > 0 {
		var err error
		if body, err = c.body(&media, body); err != nil {
			return Fingerprint{}, refuse(CodeBodyInvalid, err)
		}
	}
	purpose := fingerprintPurpose + r.Operation
	head := appendPart(c.scratch[:0], purpose)
	for _, p := range [...]string{canonicalPairs(r.Query), media.text, encoding, headerPart(r.Header)} {
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

// body returns the canonical form of a body of a media type, in c's memory or in
// memory of its own.
func (c *canonicalizer) body(media *mediaType, body []byte) ([]byte, error) {
	switch {
	case media.json:
		out, err := c.canonical(c.out[:0], body)
		c.out, c.dst = out, nil
		return out, err
	case media.form:
		return []byte(canonicalPairs(string(body))), nil
	case media.boundary != "":
		out, ok := canonicalMultipart(c.out[:0], body, media.boundary)
		if !ok {
			return body, nil
		}
		c.out, media.text = out, media.parts
		return out, nil
	}
	return body, nil
}

// headerPart is "" where no headers count.
func headerPart(header map[string][]string) string {
	if len(header) == 0 {
		return ""
	}
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(header)) {
		b = appendHeader(b, name, header[name])
	}
	return string(b)
}

// mediaType is a Content-Type as far as fingerprints depend on it.
type mediaType struct {
	text string // in one way; as it was sent where it is no media type
	json bool
	form bool // application/x-www-form-urlencoded
	// Of multipart/form-data: the boundary, and what takes the place of text where
	// the parts take the place of the body. No text is the same.
	boundary, parts string
}

func parseMediaType(s string) mediaType {
	if s == "" || s == "application/json" {
		return mediaType{text: s, json: s != ""}
	}
	base, params, err := mime.ParseMediaType(s)
	if err != nil {
		return mediaType{text: strings.TrimSpace(s)}
	}
	if charset, ok := params["charset"]; ok {
		params["charset"] = strings.ToLower(charset)
	}
	m := mediaType{
		text: strings.TrimSpace(s),
		json: base == "application/json" || strings.HasSuffix(base, "+json"),
		form: base == "application/x-www-form-urlencoded",
	}
	if full := mime.FormatMediaType(base, params); full != "" {
		m.text = full
	}
	if base == "multipart/form-data" {
		m.boundary = params["boundary"]
		delete(params, "boundary")
		m.parts = mime.FormatMediaType(base, params) + " in parts"
	}
	return m
}

// canonicalEncoding returns "" for a body that is not encoded.
func canonicalEncoding(s string) string {
	if s = strings.ToLower(strings.TrimSpace(s)); s == "identity" {
		return ""
	}
	return s
}
