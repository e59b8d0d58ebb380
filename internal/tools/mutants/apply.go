package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A token is a word, a text in quotes or a single sign. Comments are the first alternative.
const token = "`[^`]*`" + `|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\w+|\S`

// tokens finds the comments and tokens of a language, by the ending of its files.
var tokens = map[string]*regexp.Regexp{
	".go":  regexp.MustCompile(`(//[^\n]*|(?s:/\*.*?\*/))|` + token),
	".lua": regexp.MustCompile(`(--[^\n]*)|` + token),
}

// span is where a token is.
type span struct{ from, to int }

// scan returns the tokens of a text, without comments and white space.
func scan(re *regexp.Regexp, text string) (words []string, at []span) {
	for _, m := range re.FindAllStringSubmatchIndex(text, -1) {
		if m[2] < 0 { // no comment
			words, at = append(words, text[m[0]:m[1]]), append(at, span{m[0], m[1]})
		}
	}
	return words, at
}

// apply returns the text of the file with the fault. It compares code without comments and white space,
// so a fault survives a reworded comment and another layout. The code to replace has to occur exactly
// once.
func (f *Fault) apply(text string) (string, error) {
	re := tokens[path.Ext(f.File)]
	if re == nil {
		return "", fmt.Errorf("%s: unknown kind of file", f.File)
	}
	words, at := scan(re, text)
	old, _ := scan(re, f.Old)
	var found []span
	for i := range len(words) - len(old) + 1 {
		if len(old) > 0 && slices.Equal(words[i:i+len(old)], old) {
			found = append(found, span{at[i].from, at[i+len(old)-1].to})
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has this code %d times, want once:\n%s", f.File, len(found), f.Old)
	}
	return text[:found[0].from] + strings.TrimSpace(f.New) + text[found[0].to:], nil
}
