package idem

import (
	"bytes"
	"errors"
	"slices"
	"strings"
)

// member is where a member of an object stands in canonicalizer.dst: its name
// with quotes, a colon, its value. One byte, the comma, lies between members.
type member struct{ start, nameEnd, end int }

var errDuplicateMember = errors.New("idem: JSON object has two members of one name")

// order sorts the members of one object and moves them to their new places.
// Nested unsorted objects are moved once per level, of which there are at most
// maxJSONDepth.
func (c *canonicalizer) order(ms []member) error {
	from := ms[0].start
	slices.SortFunc(ms, c.compare)
	c.scratch = c.scratch[:0]
	for i, m := range ms {
		if i > 0 {
			if c.compare(ms[i-1], m) == 0 {
				return errDuplicateMember
			}
			c.scratch = append(c.scratch, ',')
		}
		c.scratch = append(c.scratch, c.dst[m.start:m.end]...)
	}
	copy(c.dst[from:], c.scratch)
	return nil
}

// compare orders two members by their decoded names.
func (c *canonicalizer) compare(a, b member) int {
	return compareNames(c.dst[a.start+1:a.nameEnd-1], c.dst[b.start+1:b.nameEnd-1])
}

// compareNames compares what two canonical strings, without quotes, stand for.
// Canonical escapes stand for one ASCII character each; everything else, UTF-8,
// sorts by code point when its bytes are compared.
func compareNames(a, b []byte) int {
	if len(a) > 0 && len(b) > 0 && a[0] != b[0] && a[0] != '\\' && b[0] != '\\' {
		return int(a[0]) - int(b[0]) // most names differ at once
	}
	if bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		return bytes.Compare(a, b)
	}
	for len(a) > 0 && len(b) > 0 {
		x, n := decodedByte(a)
		y, m := decodedByte(b)
		if x != y {
			return int(x) - int(y)
		}
		a, b = a[n:], b[m:]
	}
	return len(a) - len(b)
}

// decodedByte returns the first byte of what a canonical string stands for,
// and how many bytes of s stand for it.
func decodedByte(s []byte) (byte, int) {
	if s[0] != '\\' {
		return s[0], 1
	}
	const escapes, meaning = `bfnrt`, "\b\f\n\r\t"
	switch i := strings.IndexByte(escapes, s[1]); {
	case i >= 0:
		return meaning[i], 2
	case s[1] == 'u': // canonical: \u00 and two digits
		return byte(hex4(s)), 6
	}
	return s[1], 2
}
