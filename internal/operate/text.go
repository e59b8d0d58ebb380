package operate

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Stored text must not steer the operator's terminal or look like other text. So control
// characters, line breaks, changes of direction (U+202E) and invisible characters are shown as
// escapes, or replaced.

// Printable makes a text of several lines safe to show.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsGraphic(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// OneLine makes a text safe to show in one line, with escapes as in Go and JSON (\n, \u202e).
func OneLine(s string) string {
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
