package idem

import (
	"bytes"
	"io"
	"maps"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/internal/digest"
)

// maxPairs is the largest number of pairs that [canonicalPairs] sorts. net/url refuses to
// read more.
const maxPairs = 10000

// canonicalPairs writes a query, or the body of a form, in one way. It decodes the pairs,
// sorts them by name, keeps pairs of one name in their order, and encodes them again. Names
// that differ only after "[]" count as one name, because readers of lists of objects
// ("item[][id]=1&item[][n]=2&item[][id]=3") go by the order.
//
// If net/url refuses a part of the text, all of it stays as it was sent, because we cannot
// know how the handler reads it. It differs from every canonical form, because those are
// always well-formed.
func canonicalPairs(raw string) string {
	if raw == "" || strings.Count(raw, "&") >= maxPairs || strings.Contains(raw, ";") {
		return raw
	}
	type pair struct{ name, value string }
	var pairs []pair
	for s := range strings.SplitSeq(raw, "&") {
		if s == "" {
			continue
		}
		name, value, _ := strings.Cut(s, "=")
		name, err := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err != nil || err2 != nil {
			return raw
		}
		pairs = append(pairs, pair{name, value})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		x, _, _ := strings.Cut(a.name, "[]")
		y, _, _ := strings.Cut(b.name, "[]")
		return strings.Compare(x, y)
	})
	var b strings.Builder
	b.Grow(len(raw) + 1)
	for _, p := range pairs {
		b.WriteString(url.QueryEscape(p.name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p.value))
		b.WriteByte('&')
	}
	return b.String()
}

// canonicalMultipart returns the headers and the content of each part of a
// multipart/form-data body, in their order. It leaves the boundary out, because clients make
// up a new one for a retry. ok is false if the body is malformed.
func canonicalMultipart(body []byte, boundary string) (form []byte, ok bool) {
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF { //nolint:errorlint // if it is wrapped, the last boundary is missing
			return form, true
		}
		if err != nil {
			return nil, false
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, false
		}
		form = digest.AppendParts(form, canonicalHeader(part.Header), string(content))
	}
}

// canonicalHeader writes headers sorted by name, with all lines of each. A header without lines
// counts as one that is not there. It returns "" if there are no headers.
func canonicalHeader(header map[string][]string) string {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if len(header[name]) == 0 {
			continue
		}
		b = digest.AppendParts(b, name, string(digest.AppendParts(nil, header[name]...)))
	}
	return string(b)
}
