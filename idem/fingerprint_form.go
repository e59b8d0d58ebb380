package idem

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"
)

// maxPairs is the largest number of pairs that [canonicalPairs] puts in order. It
// is that of net/url, which refuses to read more.
const maxPairs = 10000

// canonicalPairs writes a query, or the body of a form, in one way: its pairs
// decoded, sorted by name, pairs of one name in their order, and encoded again.
// Names that differ only behind "[]" count as one name, because readers of lists
// of objects ("item[][id]=1&item[][n]=2&item[][id]=3") go by the order.
// Where net/url refuses any of it, all of it is kept as it was sent, because it
// is not known how the handler reads that. It cannot be taken for another one's
// canonical form, which is always well-formed.
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

// canonicalMultipart appends the parts of a multipart/form-data body in their
// order, each with its headers and its content, but without the boundary, which
// clients make up anew for a retry. ok is false for a body that is not
// well-formed; dst comes back as it was then.
func canonicalMultipart(dst, body []byte, boundary string) (form []byte, ok bool) {
	form = dst
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF { //nolint:errorlint // wrapped, it means that the last boundary is missing
			return form, true
		}
		if err != nil {
			return dst, false
		}
		form = appendCount(form, len(part.Header))
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			form = appendHeader(form, name, part.Header[name])
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return dst, false
		}
		form = appendPart(form, string(content))
	}
}

// appendHeader appends a header with all of its lines.
func appendHeader(dst []byte, name string, lines []string) []byte {
	dst = appendCount(appendPart(dst, name), len(lines))
	for _, line := range lines {
		dst = appendPart(dst, line)
	}
	return dst
}

func appendCount(dst []byte, n int) []byte { return binary.BigEndian.AppendUint64(dst, uint64(n)) }
