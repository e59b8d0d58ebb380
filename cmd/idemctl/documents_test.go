package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/documents"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
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

// Every command of idemctl in a block of a document runs on servers of the test, with their addresses in its environment.
func TestCommandsInDocumentsRun(t *testing.T) {
	t.Parallel()
	pages, err := documents.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		for _, b := range p.Blocks() {
			commands, err := documents.Commands(b.Code)
			if b.Language != "sh" || b.From != "" || err != nil { // TestCommandsInDocumentsExist tells of an error
				continue
			}
			for _, c := range commands {
				if c.Words[0] != "idemctl" {
					continue
				}
				t.Run(p.Path+" "+strings.Join(c.Words[1:], " "), func(t *testing.T) {
					t.Parallel()
					env, args := onServers(t, c.Words[1:])
					if got := idemctl(t, env, args...); got.code != 0 {
						t.Errorf("idemctl %q = %+v, want exit code 0", args, got)
					}
				})
			}
		}
	}
}

// onServers returns the environment of a command, and its arguments with what the test has in place of placeholders.
func onServers(t *testing.T, words []string) (env map[string]string, args []string) {
	t.Helper()
	args = slices.Clone(words)
	switch {
	case slices.Contains(args, "--from"): // asks no database
	case slices.Contains(args, "migrate"):
		env = map[string]string{"IDEMCTL_DATABASE": scratch.Empty(t, testserver.SharedPostgres(t))}
	case args[0] == "lock":
		env = ensembleEnv(t, "")
		args[len(args)-1] = "true" // in place of the program of the reader
	case args[0] == "record":
		store, server := openStore(t)
		settle(t, store, "k", driver.StateUnknown, nil)
		env = ensembleEnv(t, server.URL())
		for i, word := range args {
			switch word {
			case "5f6c…":
				args[i] = idem.NewKeyID("m", "k").String()
			case "answer.json":
				args[i] = answerFile(t, paid)
			}
		}
	default:
		env = ensembleEnv(t, testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes")).URL())
	}
	return env, args
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
