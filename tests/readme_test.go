package tests

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README's curl lines do what its comments say. They are read as a shell
// reads them and sent without curl, to an instance that needs no servers, as
// the README starts it. They are of HTTP by nature.
func TestREADMECommandsWork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	in := startInstance(t, "the sample of the README")
	var answers []answer
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for _, words := range shellCommands(t, block[1]) {
			if words[0] == "curl" {
				answers = append(answers, curl(t, in.addr, words[1:]))
			}
		}
	}
	if len(answers) != 4 {
		t.Fatalf("the README has %d curl commands, want 4: pay, replay, mismatch, list", len(answers))
	}
	first, replay, mismatch, list := answers[0], answers[1], answers[2], answers[3]
	if first.status != 201 || first.replayed {
		t.Errorf("first command = %v, want 201", first)
	}
	wantReplay(t, "second command", replay, first.payment)
	wantRefusal(t, "third command", mismatch, "key-reused")
	if n := strings.Count(list.body, first.payment.ID); n != 1 || strings.Count(list.body, `"id"`) != 1 {
		t.Errorf("fourth command = %v, want the payment, once", list)
	}
}

// curl sends what the command line says to another host. It knows the options
// that the README uses, and no others.
func curl(t *testing.T, addr string, words []string) answer {
	t.Helper()
	method, target, body, header := http.MethodGet, "", "", http.Header{}
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-i" || w == "-s":
		case w == "-H" && i+1 < len(words):
			i++
			name, value, ok := strings.Cut(words[i], ":")
			if !ok {
				t.Fatalf("header %q without a colon", words[i])
			}
			header.Add(name, strings.TrimSpace(value))
		case w == "-d" && i+1 < len(words):
			i++
			method, body = http.MethodPost, words[i]
		case !strings.HasPrefix(w, "-") && target == "":
			u, err := url.Parse(w)
			if err != nil || u.Host != "127.0.0.1:8080" {
				t.Fatalf("URL %q (%v), want one of 127.0.0.1:8080", w, err)
			}
			target = u.RequestURI()
		default:
			t.Fatalf("this test does not know curl's %q", w)
		}
	}
	return client{addr: addr}.request(t.Context(), method, target, body, header)
}

// shellCommands splits a script into commands of words: comments, quotes, and
// lines that are continued with a backslash.
func shellCommands(t *testing.T, script string) [][]string {
	t.Helper()
	script = strings.ReplaceAll(script, "\\\n", " ")
	var commands [][]string
	for line := range strings.Lines(script) {
		if words := shellWords(t, line); len(words) > 0 {
			commands = append(commands, words)
		}
	}
	return commands
}

var shellWord = regexp.MustCompile(`^(?:'([^']*)'|"([^"\\$` + "`" + `]*)"|([^\s'"\\#$&|;<>]+))(?:\s+|$)`)

func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for line = strings.TrimSpace(line); line != "" && line[0] != '#'; {
		m := shellWord.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("this test cannot read the shell's %q", line)
		}
		words = append(words, m[1]+m[2]+m[3])
		line = line[len(m[0]):]
	}
	return words
}
