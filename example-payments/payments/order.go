package payments

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of an [Order].
const (
	MaxAmount       = 9_000_000_000_000_000 // exact in a double, which is what clients count in
	MaxAccountBytes = 64
	MaxNoteBytes    = 500
)

// ParseOrder reads the JSON body of a payment request. It is strict, since what is
// ignored here is money that moves otherwise than its sender meant: one JSON
// object in valid UTF-8, known members only, none twice, an amount written as
// an integer, nothing behind it. The error is an [*Error] with
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

// Validate checks an order, however it came. The error is an [*Error] with
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
		return fmt.Errorf("%s holds characters that no account has", member)
	}
	return nil
}

func validCurrency(c string) bool {
	return len(c) == 3 && strings.Trim(c, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
