package idem

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// str reads a string and writes it with the shortest escapes there are: a
// quote, a backslash and control characters are escaped, nothing else.
func (c *canonicalizer) str() error {
	src, run := c.src, c.pos // run: start of what is copied as it is
	i := c.pos + 1
	for i < len(src) {
		switch b := src[i]; {
		case b == '"':
			c.dst = append(c.dst, src[run:i+1]...)
			c.pos = i + 1
			return nil
		case b == '\\':
			c.dst = append(c.dst, src[run:i]...)
			c.pos = i
			if err := c.escape(); err != nil {
				return err
			}
			i, run = c.pos, c.pos
		case b < ' ':
			c.pos = i
			return c.fail("control character in a string")
		case b < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(src[i:])
			if r == utf8.RuneError && n == 1 {
				c.pos = i
				return c.fail("invalid UTF-8")
			}
			i += n
		}
	}
	c.pos = len(src)
	return c.fail("the rest of a string is expected")
}

// escape reads one escape, or two that make a surrogate pair.
func (c *canonicalizer) escape() error {
	if c.pos+1 >= len(c.src) {
		return c.fail("incomplete escape")
	}
	var r rune
	n := 2
	switch b := c.src[c.pos+1]; b {
	case '"', '\\', '/':
		r = rune(b)
	case 'b':
		r = '\b'
	case 'f':
		r = '\f'
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'u':
		n = 6
		if r = hex4(c.src[c.pos:]); r < 0 {
			return c.fail("malformed \\u escape")
		}
		if utf16.IsSurrogate(r) {
			n = 12
			if r = utf16.DecodeRune(r, hex4(c.src[c.pos+6:])); r == utf8.RuneError {
				return c.fail("half of a surrogate pair")
			}
		}
	default:
		return c.fail("unknown escape")
	}
	c.dst = appendStringRune(c.dst, r)
	c.pos += n
	return nil
}

// hex4 reads \uXXXX at the start of b; -1 where there is none.
func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var r rune
	for _, d := range b[2:6] {
		switch {
		case '0' <= d && d <= '9':
			d -= '0'
		case 'a' <= d && d <= 'f':
			d -= 'a' - 10
		case 'A' <= d && d <= 'F':
			d -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

func appendStringRune(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	if r < ' ' {
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
	}
	return utf8.AppendRune(dst, r)
}

// number copies a number as it stands.
func (c *canonicalizer) number() error {
	start := c.pos
	if c.peek() == '-' {
		c.pos++
	}
	if c.peek() == '0' {
		c.pos++ // nothing may follow a leading zero
	} else if c.digits() == 0 {
		return c.fail("a digit is expected")
	}
	if c.peek() == '.' {
		c.pos++
		if c.digits() == 0 {
			return c.fail("a digit is expected after the point")
		}
	}
	if b := c.peek(); b == 'e' || b == 'E' {
		c.pos++
		if b = c.peek(); b == '+' || b == '-' {
			c.pos++
		}
		switch n := c.digits(); {
		case n == 0:
			return c.fail("a digit is expected in the exponent")
		case n > maxJSONExponent:
			return c.fail("exponent is out of range")
		}
	}
	if c.pos-start > maxJSONNumber {
		return c.fail("number is too long")
	}
	c.dst = append(c.dst, c.src[start:c.pos]...)
	return nil
}

// digits skips digits and returns how many.
func (c *canonicalizer) digits() int {
	start := c.pos
	for c.pos < len(c.src) && '0' <= c.src[c.pos] && c.src[c.pos] <= '9' {
		c.pos++
	}
	return c.pos - start
}

func (c *canonicalizer) literal(word string) error {
	if !bytes.HasPrefix(c.src[c.pos:], []byte(word)) {
		return c.fail("a value is expected")
	}
	c.dst = append(c.dst, word...)
	c.pos += len(word)
	return nil
}
