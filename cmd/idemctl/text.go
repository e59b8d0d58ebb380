package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What others have stored does not steer the terminal, nor look like something
// else: control characters, line breaks, those that change the direction of
// writing (U+202E) and what is invisible are shown as escapes, or replaced.

// printable is a text of several lines.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsGraphic(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// oneLine is a text in one line, with what is not shown as it is in the form that
// Go and JSON have for it: \n, \u202e.
func oneLine(s string) string {
	var out strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// writeJSON writes an object and a line break. Package json escapes controls
// below U+0020 only.
func writeJSON(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range string(data) { // all of them within strings
		switch high, low := utf16.EncodeRune(r); {
		case strconv.IsPrint(r):
			out.WriteRune(r)
		case high == utf8.RuneError:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	out.WriteByte('\n')
	_, err = io.WriteString(w, out.String())
	return err
}
