package payments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// value is a member's value: a string, number, bool or null token. Nested
// values have been refused before.
type value struct {
	member string
	token  json.Token
}

func (v value) text(to *string) error {
	s, ok := v.token.(string)
	if !ok {
		return fmt.Errorf("%s is not a string", v.member)
	}
	*to = s
	return nil
}

// integer takes digits only: neither 1.0 nor 1e3, whose exact value a reader
// would have to compute, nor a number in a string.
func (v value) integer(to *int64) error {
	n, ok := v.token.(json.Number)
	if !ok {
		return fmt.Errorf("%s is not a number", v.member)
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil {
		return fmt.Errorf("%s is not an integer in digits, or is out of range", v.member)
	}
	*to = i
	return nil
}

// members are the names seen in an object.
type members []string

func (m *members) add(name string) error {
	if slices.Contains(*m, name) {
		return fmt.Errorf("the member %.64q is there twice", name)
	}
	*m = append(*m, name)
	return nil
}

func (m members) require(names ...string) error {
	for _, n := range names {
		if !slices.Contains(m, n) {
			return fmt.Errorf("%s is missing", n)
		}
	}
	return nil
}

var errNotObject = errors.New("the body is not one JSON object")

// readObject calls each for every member of the one flat JSON object that body
// has to be. Package json alone would take the last of two members of one
// name, match names without regard to case, replace broken text by U+FFFD and
// stop reading at the end of the first value.
func readObject(body []byte, each func(name string, v value) error) error {
	if !utf8.Valid(body) || loneSurrogate(body) {
		return errors.New("the body is not valid Unicode text")
	}
	if !json.Valid(body) { // nor is there anything behind the first value
		return errNotObject
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errNotObject
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return errNotObject
		}
		v, err := dec.Token()
		if err != nil {
			return errNotObject
		}
		if _, nested := v.(json.Delim); nested {
			return fmt.Errorf("the member %.64q holds a nested value", name)
		}
		if err := each(name.(string), value{fmt.Sprintf("%.64s", name), v}); err != nil {
			return err
		}
	}
	return nil
}

// loneSurrogate reports whether JSON text holds an escaped half of a surrogate
// pair without the other half, which stands for no character (RFC 8259,
// section 8.2).
func loneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		r := escaped(text[i:])
		switch {
		case r >= 0xd800 && r < 0xdc00:
			if low := escaped(text[i+6:]); low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		case r >= 0xdc00 && r <= 0xdfff:
			return true
		default:
			i++ // what is escaped is no backslash of its own
		}
	}
	return false
}

// escaped returns the number in a leading \uXXXX, or -1.
func escaped(text []byte) int64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(n)
}
