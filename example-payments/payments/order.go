package payments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Order is a request for a payment.
type Order struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int64  `json:"amount"`   // minor units, > 0
	Currency string `json:"currency"` // ISO 4217, three capital letters
	Note     string `json:"note"`
}

// Bounds of an [Order].
const (
	MaxAmount       = 9_000_000_000_000_000 // exact in a double, as clients use it
	MaxAccountBytes = 64
	MaxNoteBytes    = 500
)

// ParseOrder reads the JSON body of a payment request. It is strict, because a
// misread body moves money differently than the sender meant. The body must be one
// JSON object in valid UTF-8, with known members only, each once, with an amount in
// digits, and nothing after the object. The error is an [*Error] with
// CodeBodyInvalid.
func ParseOrder(body []byte) (Order, error) {
	var o Order
	var seen members
	err := readObject(body, func(name string, v value) error {
		if err := seen.add(name); err != nil {
			return err
		}
		switch name {
		case "from":
			return v.text(&o.From)
		case "to":
			return v.text(&o.To)
		case "amount":
			return v.integer(&o.Amount)
		case "currency":
			return v.text(&o.Currency)
		case "note":
			return v.text(&o.Note)
		}
		return fmt.Errorf("the member %.64q is not known", name)
	})
	if err == nil {
		err = seen.require("from", "to", "amount", "currency")
	}
	if err != nil {
		return Order{}, &Error{CodeBodyInvalid, err.Error()}
	}
	if err := o.Validate(); err != nil {
		return Order{}, err
	}
	return o, nil
}

// Validate checks an order of either transport. The error is an [*Error] with
// CodeBodyInvalid.
func (o Order) Validate() error {
	if err := o.validate(); err != nil {
		return &Error{CodeBodyInvalid, err.Error()}
	}
	return nil
}

func (o Order) validate() error {
	if err := validAccount("from", o.From); err != nil {
		return err
	}
	if err := validAccount("to", o.To); err != nil {
		return err
	}
	switch {
	case o.From == o.To:
		return errors.New("from and to are the same account")
	case o.Amount <= 0 || o.Amount > MaxAmount:
		return fmt.Errorf("amount is not within 1 and %d minor units", int64(MaxAmount))
	case !validCurrency(o.Currency):
		return errors.New("currency is not three capital letters")
	case len(o.Note) > MaxNoteBytes:
		return fmt.Errorf("note is longer than %d bytes", MaxNoteBytes)
	case strings.ContainsRune(o.Note, 0):
		return errors.New("note holds a NUL character")
	}
	return nil
}

func validAccount(member, id string) error {
	if id == "" || len(id) > MaxAccountBytes {
		return fmt.Errorf("%s is not 1 to %d bytes long", member, MaxAccountBytes)
	}
	if strings.ContainsFunc(id, func(r rune) bool { return r < 0x20 || r == 0x7f || r == utf8.RuneError }) {
		return fmt.Errorf("%s holds characters that are not allowed", member)
	}
	return nil
}

func validCurrency(c string) bool {
	return len(c) == 3 && strings.Trim(c, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// value is the value of a member, a string, number, bool or null. It is never
// nested.
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

// integer accepts digits only. It refuses 1.0, 1e3 and a number in a string.
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

// members are the names read so far.
type members []string

func (m *members) add(name string) error {
	if slices.Contains(*m, name) {
		return fmt.Errorf("the member %.64q appears twice", name)
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

// readObject calls each for every member of body, which must be one flat JSON
// object. Package json alone would accept too much. It takes the last of two
// members of one name, ignores the case of names, replaces broken text by U+FFFD
// and stops reading at the end of the first value.
func readObject(body []byte, each func(name string, v value) error) error {
	if !utf8.Valid(body) || loneSurrogate(body) {
		return errors.New("the body is not valid Unicode text")
	}
	if !json.Valid(body) { // this also refuses text after the first value
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

// loneSurrogate reports whether JSON text escapes one half of a surrogate pair
// without the other half. That is no character (RFC 8259, section 8.2).
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
			i++ // skip the escaped character, which may be a backslash
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
