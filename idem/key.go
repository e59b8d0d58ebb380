package idem

import (
	"errors"
	"fmt"
	"strings"
)

// MaxKeyBytes is the length of the longest key, without quotes and escapes.
const MaxKeyBytes = 255

// Key comes from a client. It has 1 to MaxKeyBytes bytes of printable ASCII. It is a secret of
// the caller, so stores and logs have its [driver.KeyID] only.
type Key string

// KeyFormat narrows down the keys of a route, for example to UUIDs. The zero value accepts
// every key that [ParseKey] accepts.
type KeyFormat struct {
	// Valid reports whether a key has the format. The engine calls it first of all. It has to
	// be safe for concurrent use.
	Valid func(Key) bool
	// Advice tells a client with an invalid key how to make a valid one, as in "Send a UUID."
	// It is required.
	Advice string
}

// check says what is wrong with a format.
func (f *KeyFormat) check() error {
	if (f.Valid == nil) != (f.Advice == "") {
		return errors.New("KeyFormat needs both Valid and Advice")
	}
	return nil
}

// admit refuses a key in another format.
func (f *KeyFormat) admit(key Key) error {
	if f.Valid == nil || f.Valid(key) {
		return nil
	}
	r := refuse(CodeKeyInvalid, errKeyFormat)
	r.Advice = f.Advice
	return r
}

var (
	errKeyFormat  = errors.New("idem: key is not in the route's format")
	errKeyMissing = errors.New("idem: no key was sent")
	errKeyEmpty   = errors.New("idem: key is empty")
)

// ParseKey reads the key from the lines of an Idempotency-Key header, or from the values of
// idempotency-key metadata. It accepts the quoted string of
// draft-ietf-httpapi-idempotency-key-header-07, section 2.1, which expired on 2026-04-18 (RFC 9651,
// section 4.2.5, without parameters). It also accepts the bare form that most clients send, so "a-1" and a-1 are the
// same key. The bare form has no space, quote, backslash or comma. Otherwise several values
// joined by a proxy could look like one key.
//
// The error is a [*Refusal], with CodeKeyMissing for empty values and otherwise with
// CodeKeyInvalid. Its text never holds any part of the key.
func ParseKey(values []string) (Key, error) {
	if len(values) == 0 {
		return "", refuse(CodeKeyMissing, errKeyMissing)
	}
	if len(values) > 1 {
		return "", refuse(CodeKeyInvalid, fmt.Errorf("idem: %d keys were sent, want one", len(values)))
	}
	s := strings.Trim(values[0], " \t")
	key := s
	var err error
	if s != "" && s[0] == '"' {
		key, err = unquoteKey(s)
	} else {
		err = checkBareKey(s)
	}
	switch {
	case err != nil:
		return "", refuse(CodeKeyInvalid, err)
	case key == "":
		return "", refuse(CodeKeyInvalid, errKeyEmpty)
	case len(key) > MaxKeyBytes:
		return "", refuse(CodeKeyInvalid, fmt.Errorf("idem: key of %d bytes, at most %d", len(key), MaxKeyBytes))
	}
	return Key(key), nil
}

// Quoted returns the key as a structured-field string. Clients should send it in this form.
func (k Key) Quoted() string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(k)) + `"`
}

// checkBareKey reports the fault of an unquoted key.
func checkBareKey(s string) error {
	for i := range len(s) {
		switch c := s[i]; {
		case c == ',':
			return fmt.Errorf("idem: comma at byte %d of a bare key: several keys, or quotes are missing", i)
		case c == '"' || c == '\\':
			return fmt.Errorf("idem: quote or backslash at byte %d of a bare key", i)
		case c <= ' ' || c > '~':
			return fmt.Errorf("idem: byte %d of a bare key is not visible ASCII", i)
		}
	}
	return nil
}

// unquoteKey reads a structured-field string. s begins with a quote.
func unquoteKey(s string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' && i < len(s)-1:
			return "", fmt.Errorf("idem: more follows the quoted key at byte %d", i+1)
		case c == '"':
			return key.String(), nil
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", fmt.Errorf("idem: escape at byte %d of a quoted key is neither \\\" nor \\\\", i-1)
			}
			key.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("idem: byte %d of a quoted key is not printable ASCII", i)
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("idem: the closing quote of the key is missing")
}
