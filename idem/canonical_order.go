package idem

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// member is where a member of an object stands in canonicalizer.dst: its name
// with quotes, a colon, its value. One byte, the comma, lies between members.
type member struct{ start, nameEnd, end int }

var errDuplicateMember = errors.New("idem: JSON object has two members of one name")

// order sorts the members of one object and moves them to their new places.
// Members whose names differ in case only stay in the order in which they came.
// Nested unsorted objects are moved once per level, of which there are at most
// maxJSONDepth.
func (c *canonicalizer) order(ms []member) error {
	from := ms[0].start
	slices.SortFunc(ms, c.compareExactly)
	for i := 1; i < len(ms); i++ {
		if bytes.Equal(c.name(ms[i-1]), c.name(ms[i])) {
			return errDuplicateMember
		}
	}
	for i := 0; i < len(ms); {
		alike := i + 1
		for alike < len(ms) && c.compare(ms[i], ms[alike]) == 0 {
			alike++
		}
		if alike > i+1 {
			slices.SortFunc(ms[i:alike], func(a, b member) int { return a.start - b.start })
		}
		i = alike
	}
	c.scratch = c.scratch[:0]
	for i, m := range ms {
		if i > 0 {
			c.scratch = append(c.scratch, ',')
		}
		c.scratch = append(c.scratch, c.dst[m.start:m.end]...)
	}
	copy(c.dst[from:], c.scratch)
	return nil
}

// name is the canonical name of a member, without quotes. Two names are the same
// where these are.
func (c *canonicalizer) name(m member) []byte { return c.dst[m.start+1 : m.nameEnd-1] }

// compare orders two members by their names without regard to case.
func (c *canonicalizer) compare(a, b member) int { return compareFolded(c.name(a), c.name(b)) }

// compareExactly puts members of one name side by side.
func (c *canonicalizer) compareExactly(a, b member) int {
	if order := c.compare(a, b); order != 0 {
		return order
	}
	return bytes.Compare(c.name(a), c.name(b))
}

// compareFolded compares what two canonical strings, without quotes, stand for,
// by the code points of their folded characters. Canonical escapes stand for one
// ASCII character each.
func compareFolded(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		x, n := foldedRune(a)
		y, m := foldedRune(b)
		if x != y {
			return int(x) - int(y)
		}
		a, b = a[n:], b[m:]
	}
	return len(a) - len(b)
}

// foldedRune returns the first character of what a canonical string stands for,
// folded, and how many bytes of s stand for it.
func foldedRune(s []byte) (rune, int) {
	if s[0] >= utf8.RuneSelf {
		r, n := utf8.DecodeRune(s)
		return fold(r), n
	}
	b, n := decodedByte(s)
	if 'a' <= b && b <= 'z' {
		b -= 'a' - 'A'
	}
	return rune(b), n
}

// fold returns one character for all those that a decoder may take for each
// other when it looks a member up without regard to case. encoding/json goes
// by [unicode.SimpleFold], for which the Kelvin sign is a K and the long s an S;
// others compare what [unicode.ToLower] or [unicode.ToUpper] returns.
func fold(r rune) rune {
	r = unicode.ToUpper(unicode.ToLower(unicode.ToUpper(r)))
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
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
