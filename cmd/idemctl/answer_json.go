package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// eachMember reads the members of an object, behind its first brace, up to the
// end. A name is not repeated.
func eachMember(dec *json.Decoder, f func(name string, value json.RawMessage) error) error {
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		name, _ := t.(string)
		if seen[name] {
			return fmt.Errorf("%q is there twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		if err := f(name, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return nil
}

// strictly decodes a value, which is not null.
func strictly(value json.RawMessage, to any) error {
	if string(value) == "null" {
		return errors.New("null")
	}
	return json.Unmarshal(value, to)
}

// halfSurrogate reports whether a JSON text has an escape of one half of a
// surrogate pair without the other (RFC 8259, section 8.2), which package json
// replaces in silence. Backslashes are found within strings only.
func halfSurrogate(data []byte) bool {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		switch unit := escaped(data[i:]); {
		case unit < 0:
			i++ // the character that is escaped
		case unit>>10 == 0xd800>>10:
			if next := escaped(data[i+6:]); next>>10 != 0xdc00>>10 {
				return true
			}
			i += 11
		case unit>>10 == 0xdc00>>10:
			return true
		default:
			i += 5
		}
	}
	return false
}

// escaped is the UTF-16 code unit of an escape at the start of a text; -1 where
// there is none.
func escaped(data []byte) int {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int(unit)
}
