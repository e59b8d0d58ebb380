package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/documents"
)

// Every command of idemctl in a document has the commands, flags and arguments of this build. In a
// sentence a command may be named without its arguments.
func TestCommandsInDocumentsExist(t *testing.T) {
	t.Parallel()
	pages, err := documents.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	check := func(path, text string, whole bool) {
		commands, err := documents.Commands(text)
		if err != nil {
			if strings.Contains(text, "idemctl ") {
				t.Errorf("%s: %v", path, err)
			}
			return
		}
		for _, c := range commands {
			if c.Words[0] != "idemctl" {
				continue
			}
			checked++
			if err := accepts(c.Words[1:], whole); err != nil {
				t.Errorf("%s: %q: %v", path, c.Words, err)
			}
		}
	}
	for _, p := range pages {
		for _, b := range p.Blocks() {
			if b.Language == "sh" && b.From == "" {
				check(fmt.Sprintf("%s:%d", p.Path, b.Line), b.Code, true)
			}
		}
		for _, span := range p.Spans() {
			if strings.HasPrefix(span, "idemctl ") {
				check(p.Path, span, false)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands were found", checked)
	}
}

// accepts says what is wrong with a command line, without running it.
func accepts(args []string, whole bool) error {
	root := (&program{getenv: func(string) string { return "" }}).root()
	root.InitDefaultHelpFlag()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if given := cmd.Flags().Args(); whole || len(given) > 0 {
		if cmd.HasSubCommands() && !cmd.Runnable() || cmd.HasSubCommands() && len(given) > 0 {
			return fmt.Errorf("%s has no command %q", cmd.CommandPath(), given)
		}
		if err := cmd.ValidateArgs(given); err != nil {
			return err
		}
	}
	return nil
}

func TestAccepts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line  string
		whole bool
		want  bool
	}{
		{"record list --state unknown", true, true},
		{"--zookeeper a:1 lock --timeout 5s /a -- ./b.sh --its-own", true, true},
		{"--help", false, true},
		{"store retire", false, true},
		{"store retire", true, false},
		{"record lists", false, false},
		{"record list --stat unknown", false, false},
		{"lock --timeout 5 /a -- b", true, false},
		{"queue poll", true, false},
	} {
		if err := accepts(strings.Fields(tt.line), tt.whole); (err == nil) != tt.want {
			t.Errorf("accepts(%q, %v) = %v, want %v", tt.line, tt.whole, err, tt.want)
		}
	}
}
