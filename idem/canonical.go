package idem

import (
	"fmt"
	"slices"
	"sync"
)

// Limits of [CanonicalJSON]. They keep a hostile body from costing more than
// its length, and a number from standing for more digits than it has.
const (
	maxJSONDepth    = 128 // arrays and objects inside each other
	maxJSONNumber   = 128 // characters of a number
	maxJSONExponent = 3   // digits of an exponent
)

// CanonicalJSON appends the canonical form of a JSON text (RFC 8259) to dst.
// Two texts have the same form when they differ only in insignificant space,
// in the order of object members, or in how a string is escaped.
//
// Unlike RFC 8785 it never rounds: a number keeps its exact text, so 1, 1.0
// and 1e0 are three values, and so are two amounts that differ in the
// twentieth digit.
//
// Members are sorted by their names without regard to case. Names that differ in
// case only keep the order in which they came, because encoding/json takes either
// for the same field and the last one wins: {"amount":1,"Amount":2} and
// {"Amount":2,"amount":1} are two values.
//
// What two readers could take for two values is refused: invalid UTF-8, half
// of a surrogate pair, a member name that occurs twice, a byte order mark,
// anything behind the value. Refused, too, is what is over the limits: nesting
// deeper than 128, a number longer than 128 characters or with an exponent of
// more than three digits. The error says what and at which byte, and holds
// nothing of the body. dst comes back unchanged then.
//
// The form is never longer than the body.
func CanonicalJSON(dst, body []byte) ([]byte, error) {
	c := canonicalizers.Get().(*canonicalizer)
	defer c.free()
	out, err := c.canonical(dst, body)
	c.dst = nil // the caller's
	return out, err
}

// canonicalizer reads src once, from left to right, and writes as it goes.
// An object's members are put in order, in place, when the object ends.
type canonicalizer struct {
	src []byte
	pos int
	dst []byte

	members []member // of the objects that are open
	scratch []byte   // for putting members in order
	out     []byte   // for callers that need the form only for a moment
}

// canonicalizers keeps working memory. The package encoding/json/jsontext
// would do, but is behind GOEXPERIMENT in Go 1.26.
var canonicalizers = sync.Pool{New: func() any { return new(canonicalizer) }}

// free gives the canonicalizer back, unless a large body made it large.
func (c *canonicalizer) free() {
	const keep = 64 << 10
	if cap(c.scratch) > keep || cap(c.out) > keep || cap(c.members) > keep/24 {
		return
	}
	c.src, c.dst, c.members = nil, nil, c.members[:0]
	canonicalizers.Put(c)
}

func (c *canonicalizer) canonical(dst, body []byte) ([]byte, error) {
	c.src, c.pos, c.dst, c.members = body, 0, slices.Grow(dst, len(body)), c.members[:0]
	if err := c.text(); err != nil {
		return dst, err
	}
	return c.dst, nil
}

// text reads one value and nothing else.
func (c *canonicalizer) text() error {
	c.space()
	if err := c.value(0); err != nil {
		return err
	}
	if c.space(); c.pos < len(c.src) {
		return c.fail("something follows the value")
	}
	return nil
}

func (c *canonicalizer) value(depth int) error {
	switch b := c.peek(); {
	case b == '"':
		return c.str()
	case b == '{':
		return c.object(depth + 1)
	case b == '[':
		return c.array(depth + 1)
	case b == '-' || '0' <= b && b <= '9':
		return c.number()
	case b == 't':
		return c.literal("true")
	case b == 'f':
		return c.literal("false")
	case b == 'n':
		return c.literal("null")
	}
	return c.fail("a value is expected")
}

func (c *canonicalizer) array(depth int) error {
	if depth > maxJSONDepth {
		return c.fail("nested too deeply")
	}
	c.take()
	if c.space(); c.peek() == ']' {
		c.take()
		return nil
	}
	for {
		c.space()
		if err := c.value(depth); err != nil {
			return err
		}
		c.space()
		switch c.peek() {
		case ',':
			c.take()
		case ']':
			c.take()
			return nil
		default:
			return c.fail("a comma or the end of the array is expected")
		}
	}
}

func (c *canonicalizer) object(depth int) error {
	if depth > maxJSONDepth {
		return c.fail("nested too deeply")
	}
	c.take()
	if c.space(); c.peek() == '}' {
		c.take()
		return nil
	}
	first, sorted := len(c.members), true
	for {
		if c.space(); c.peek() != '"' {
			return c.fail("a member name is expected")
		}
		m := member{start: len(c.dst)}
		if err := c.str(); err != nil {
			return err
		}
		m.nameEnd = len(c.dst)
		if c.space(); c.peek() != ':' {
			return c.fail("a colon is expected")
		}
		c.take()
		c.space()
		if err := c.value(depth); err != nil {
			return err
		}
		m.end = len(c.dst)
		if len(c.members) > first && sorted {
			sorted = c.compare(c.members[len(c.members)-1], m) < 0
		}
		c.members = append(c.members, m)
		c.space()
		switch c.peek() {
		case ',':
			c.take()
			continue
		case '}':
		default:
			return c.fail("a comma or the end of the object is expected")
		}
		if !sorted {
			if err := c.order(c.members[first:]); err != nil {
				return err
			}
		}
		c.members = c.members[:first]
		c.take()
		return nil
	}
}

// peek returns the next byte, 0 at the end; no value begins with that.
func (c *canonicalizer) peek() byte {
	if c.pos < len(c.src) {
		return c.src[c.pos]
	}
	return 0
}

// take copies the next byte.
func (c *canonicalizer) take() {
	c.dst = append(c.dst, c.src[c.pos])
	c.pos++
}

func (c *canonicalizer) space() {
	for c.pos < len(c.src) {
		switch c.src[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

func (c *canonicalizer) fail(what string) error {
	if c.pos >= len(c.src) {
		what += ", not the end"
	}
	return fmt.Errorf("idem: JSON at byte %d: %s", c.pos, what)
}
