package documents

import (
	"fmt"
	"regexp"
	"strings"
)

// Command is a simple command of a shell script.
type Command struct {
	Words   []string // without quotes
	Comment string   // the lines of comment directly in front of it, without "# "
}

// word is a word of a script. Substitutions stay as they are written.
var word = regexp.MustCompile(`^(?:'[^']*'|"(?:\$\([^)]*\)|[^"\\` + "`" + `])*"|\$\([^)]*\)|[^\s'"|&;<>()` + "`" + `])+`)

// redirection is what stands in front of the file of a redirection. One to another stream has no file.
var redirection = regexp.MustCompile(`^[0-9]?[<>]+(&[0-9])?`)

// part is a piece of a word with one kind of quotes.
var part = regexp.MustCompile(`'[^']*'|"[^"]*"|[^'"]+`)

var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// Commands splits a script into its simple commands. It knows comments, quotes, continued lines,
// pipes, && and redirections. Assignments in front of a command are left out, and so are the
// targets of redirections. Anything else is an error.
func Commands(script string) (commands []Command, err error) {
	comment := ""
	for line := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
		var words []string
		end := func() {
			for len(words) > 0 && assignment.MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) > 0 {
				commands = append(commands, Command{words, strings.TrimSpace(comment)})
				comment = ""
			}
			words = nil
		}
		redirected := false
		rest := strings.TrimSpace(line)
		if rest == "" {
			comment = ""
		}
		for ; rest != ""; rest = strings.TrimSpace(rest) {
			if text, ok := strings.CutPrefix(rest, "#"); ok {
				if len(words) == 0 {
					comment += strings.TrimSpace(text) + "\n" //nolint:perfsprint // a few short lines
				}
				break
			}
			if m := redirection.FindStringSubmatch(rest); m != nil {
				redirected = m[1] == ""
				rest = rest[len(m[0]):]
				continue
			}
			if w := word.FindString(rest); w != "" {
				rest = rest[len(w):]
				if !redirected {
					words = append(words, unquote(w))
				}
				redirected = false
				continue
			}
			switch {
			case strings.HasPrefix(rest, "&&"):
				end()
				rest = rest[2:]
			case rest[0] == '|' || rest[0] == ';' || rest[0] == '&':
				end()
				rest = rest[1:]
			default:
				return nil, fmt.Errorf("cannot read the shell's %q", rest)
			}
		}
		end()
	}
	return commands, nil
}

func unquote(w string) string {
	return part.ReplaceAllStringFunc(w, func(p string) string {
		if p[0] == '\'' || p[0] == '"' {
			return p[1 : len(p)-1]
		}
		return p
	})
}
