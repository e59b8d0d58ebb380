package repository

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/documents"
)

// pages returns the project's Markdown.
func pages(t *testing.T) []documents.Page {
	t.Helper()
	all, err := documents.Pages("../..")
	if err != nil || len(all) < 10 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	return all
}

// commandsOf returns the commands of a page's blocks.
func commandsOf(t *testing.T, p documents.Page) (all []documents.Command) {
	t.Helper()
	for _, b := range p.Blocks() {
		if b.Language != "sh" || b.From != "" {
			continue
		}
		commands, err := documents.Commands(b.Code)
		if err != nil {
			t.Errorf("%s:%d: %v", p.Path, b.Line, err)
		}
		all = append(all, commands...)
	}
	return all
}

// Every link within the repository leads to a file that is there, and its fragment to a heading.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	byPath := map[string]documents.Page{}
	for _, p := range pages(t) {
		byPath[p.Path] = p
	}
	for _, p := range byPath {
		for _, target := range p.Links() {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(target, "#")
			to := p.Path
			if file != "" {
				to = path.Join(path.Dir(p.Path), file)
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil || strings.HasPrefix(to, "..") {
				t.Errorf("%s links to %s, which is not there", p.Path, target)
			}
			if linked, ok := byPath[to]; fragment != "" && (!ok || !linked.Anchors()[fragment]) {
				t.Errorf("%s links to %s, which has no such heading", p.Path, target)
			}
		}
	}
}

// A block that names a file is a part of this file, where a test runs it. Blocks of languages that
// no other test reads have to name one.
func TestBlocksAreTested(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for _, b := range p.Blocks() {
			if b.From == "" {
				if !slices.Contains([]string{"go", "sh", "diff", "sql", ""}, b.Language) {
					t.Errorf("%s:%d: a block of %s without a comment <!-- from FILE -->", p.Path, b.Line, b.Language)
				}
				continue
			}
			text, err := os.ReadFile(filepath.Join("../..", path.Dir(p.Path), b.From))
			if err != nil {
				t.Errorf("%s:%d: %v", p.Path, b.Line, err)
			}
			found := false
			for depth := range 4 {
				found = found || strings.Contains("\n"+string(text), "\n"+indent(b.Code, depth))
			}
			if !found {
				t.Errorf("%s:%d: %s has no such lines", p.Path, b.Line, b.From)
			}
		}
	}
}

var lineStart = regexp.MustCompile(`(?m)^(.)`)

func indent(code string, depth int) string {
	return lineStart.ReplaceAllString(code, strings.Repeat("\t", depth)+"$1")
}

// Every command in a document exists as it is written: targets and variables of make, packages and
// tests of go, flags of the sample, files given to other programs. TestCommandsAreRun wants a test that runs it.
func TestCommandsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	usage, _ := exec.Command(kit.Binary(t, "./example-payments"), "--help").CombinedOutput()
	c := checker{string(makefile), string(usage)}
	for _, p := range pages(t) {
		for _, command := range commandsOf(t, p) {
			if err := c.check(command.Words); err != nil {
				t.Errorf("%s: %q: %v", p.Path, command.Words, err)
			}
		}
		for _, span := range p.Spans() {
			if strings.HasPrefix(span, "make ") || strings.HasPrefix(span, "go ") {
				commands, err := documents.Commands(span)
				if err == nil {
					err = c.check(commands[0].Words)
				}
				if err != nil {
					t.Errorf("%s: `%s`: %v", p.Path, span, err)
				}
			}
		}
	}
}

type checker struct{ makefile, usage string }

func (c checker) check(words []string) error {
	switch name, rest := words[0], words[1:]; name {
	case "make":
		return c.checkMake(rest)
	case "go":
		return c.checkGo(rest)
	case "idemctl", "curl", "openssl", "psql", "export", "cd":
		return nil
	case "git":
		if rest[0] == "clone" && rest[1] != "https://"+module {
			return fmt.Errorf("this is not the repository %s", module)
		}
		return nil
	case "docker", "kubectl", "promtool":
		for i, w := range rest {
			if i > 0 && rest[i-1] == "-f" || strings.HasPrefix(w, "deploy/") {
				if _, err := os.Stat("../../" + w); err != nil {
					return err
				}
			}
		}
		return nil
	default:
		return fmt.Errorf("no test knows %s", name)
	}
}

func (c checker) checkMake(words []string) error {
	for _, w := range words {
		pattern := `(?m)^` + regexp.QuoteMeta(w) + `:`
		if name, _, ok := strings.Cut(w, "="); ok {
			pattern = `(?m)^` + regexp.QuoteMeta(name) + ` *\?=`
		}
		if !regexp.MustCompile(pattern).MatchString(c.makefile) {
			return fmt.Errorf("the Makefile has no %s", w)
		}
	}
	return nil
}

func (c checker) checkGo(words []string) error {
	if len(words) < 2 || !slices.Contains([]string{"run", "test", "get", "install", "doc"}, words[0]) {
		return nil // such as go vet
	}
	dir, patterns := "", []string(nil)
	for i, w := range words[1:] {
		if local, ok := strings.CutPrefix(w, module); ok {
			w = "." + local
		}
		if w, _, _ = strings.Cut(w, "@"); w == "." || strings.HasPrefix(w, "./") {
			dir = filepath.Join("../..", strings.TrimSuffix(w, "/..."))
			if sources, _ := filepath.Glob(filepath.Join(dir, "*")); len(sources) == 0 {
				return fmt.Errorf("no folder %s", w)
			}
			continue
		}
		name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
		if words[0] == "run" && strings.HasPrefix(w, "-") && strings.HasSuffix(dir, "example-payments") && !strings.Contains(c.usage, "-"+name+" ") && !strings.Contains(c.usage, "-"+name+"\n") {
			return fmt.Errorf("the sample has no flag %s", w)
		}
		if chosen := i + 2; words[0] == "test" && (w == "-run" || w == "-bench") && chosen < len(words) && words[chosen] != "^$" {
			patterns = append(patterns, words[chosen])
		}
	}
	for _, pattern := range patterns {
		if err := hasTest(dir, pattern); err != nil {
			return err
		}
	}
	return nil
}

// hasTest looks for a function that go test would choose by a pattern.
func hasTest(dir, pattern string) error {
	first, _, _ := strings.Cut(pattern, "/")
	wanted, err := regexp.Compile(first)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for _, m := range goTest.FindAllSubmatch(text, -1) {
			if wanted.Match(m[1]) {
				return nil
			}
		}
	}
	return errors.Join(err, fmt.Errorf("%s has no test %s", dir, first))
}

var goTest = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)

var statusFirst = regexp.MustCompile(`^(\d{3})\b`)

// The curl lines of a page get the statuses in the comments in front of them, from one new sample
// for each page. Those of the README have tests of their own.
func TestCurlLinesAnswerAsTheySay(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		var lines []documents.Command
		for _, c := range commandsOf(t, p) {
			if c.Words[0] == "curl" {
				lines = append(lines, c)
			}
		}
		if len(lines) == 0 || p.Path == "README.md" {
			continue
		}
		t.Run(p.Path, func(t *testing.T) {
			t.Parallel()
			in := kit.StartInstance(t, "the sample of "+p.Path)
			for _, c := range lines {
				want := statusFirst.FindString(c.Comment)
				if want == "" {
					t.Errorf("%q has no comment with a status in front of it", c.Words)
				}
				r := curlRequest(t, c.Words)
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				a := kit.Client{Addr: in.Addr}.Request(t.Context(), r.Method, r.URL.RequestURI(), string(body), r.Header)
				if strconv.Itoa(a.Status) != want || strings.Contains(c.Comment, "Idempotent-Replayed") != a.Replayed {
					t.Errorf("%q = %v, want what %q says", c.Words, a, c.Comment)
				}
			}
		})
	}
}
