// Package answer reads the FILE of "record resolve --applied" and turns it into a stored response.
package answer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
)

// MaxBytes bounds FILE.
const MaxBytes = 16 << 20

// Answer is the response in FILE, of either transport.
type Answer struct {
	status      int
	headers     map[string][]string
	text        *string // body
	bytes       []byte  // body_base64
	binary      bool    // body_base64 was given
	messageType string  // of a gRPC message
}

// Read reads FILE, or for "-" the standard input.
func Read(file string, in *cli.Streams) (*Answer, error) {
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, cli.UsageError{Err: fmt.Errorf("--applied: %w", err)}
		}
		defer func() { _ = f.Close() }()
		in = &cli.Streams{In: f}
	}
	data, err := in.ReadAll(MaxBytes)
	var ans *Answer
	if err == nil {
		ans, err = Parse(data)
	}
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--applied: %w", err)}
	}
	return ans, nil
}

// Parse reads the text of FILE.
func Parse(data []byte) (*Answer, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("more than %d bytes", MaxBytes)
	}
	return parse(data)
}

// parse reads one JSON object. It refuses unknown and repeated names, because
// every replay would miss a misspelled member.
func parse(data []byte) (*Answer, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8; put a binary body into body_base64")
	}
	if halfSurrogate(data) {
		return nil, errors.New(`half of a surrogate pair, such as \ud800, is no character`)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New(`not a JSON object such as {"status":201,"body":"…"}`)
	}
	ans, seen := &Answer{}, map[string]bool{}
	err := eachMember(dec, func(name string, value json.RawMessage) error {
		seen[name] = true
		return ans.set(name, value)
	})
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text follows the JSON object")
	}
	switch {
	case !seen["status"]:
		return nil, errors.New("no status")
	case ans.text != nil && ans.binary:
		return nil, errors.New("both body and body_base64")
	}
	return ans, nil
}

// set takes one member.
func (ans *Answer) set(name string, value json.RawMessage) (err error) {
	var want string
	switch name {
	case "status":
		want, err = "a whole number", strictly(value, &ans.status)
	case "headers":
		return ans.setHeaders(value)
	case "body":
		want, err = "a text", strictly(value, &ans.text)
	case "body_base64":
		var text string
		want, err = "a text in base64 (RFC 4648, section 4)", strictly(value, &text)
		if err == nil {
			ans.bytes, err = base64.StdEncoding.DecodeString(text)
		}
		ans.binary = true
	case "message_type":
		want, err = "a text", strictly(value, &ans.messageType)
	default:
		return fmt.Errorf("unknown member %q; use status, headers, body, body_base64 and message_type", name)
	}
	if err != nil {
		return fmt.Errorf("%s is not %s", name, want)
	}
	return nil
}

// setHeaders takes the member headers, an object of lists of texts.
func (ans *Answer) setHeaders(value json.RawMessage) error {
	const want = "headers is not an object of lists of texts"
	dec := json.NewDecoder(bytes.NewReader(value))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New(want)
	}
	ans.headers = map[string][]string{}
	return eachMember(dec, func(name string, value json.RawMessage) error {
		var texts []*string
		if err := strictly(value, &texts); err != nil {
			return errors.New(want)
		}
		values := make([]string, len(texts))
		for i, text := range texts {
			if text == nil {
				return fmt.Errorf("%s: %q has the value null", want, name)
			}
			values[i] = *text
		}
		ans.headers[name] = values
		return nil
	})
}

// eachMember reads the members of an object, after its first brace. It refuses a
// repeated name.
func eachMember(dec *json.Decoder, f func(name string, value json.RawMessage) error) error {
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		name, _ := t.(string)
		if seen[name] {
			return fmt.Errorf("%q appears twice", name)
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

// strictly decodes a value and refuses null.
func strictly(value json.RawMessage, to any) error {
	if string(value) == "null" {
		return errors.New("null")
	}
	return json.Unmarshal(value, to)
}

// halfSurrogate reports whether a JSON text escapes one half of a surrogate pair
// without the other (RFC 8259, section 8.2). Package json would replace it without
// an error. Backslashes appear within strings only.
func halfSurrogate(data []byte) bool {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		switch unit := escaped(data[i:]); {
		case unit < 0:
			i++ // skip the escaped character
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

// escaped is the UTF-16 code unit of an escape at the start of a text, or -1.
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
