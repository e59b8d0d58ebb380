package repository

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/documents"
)

// The README's first program runs as printed, and its two curl lines get one payment and
// its replay. It listens on a Unix socket here, so that no port has to be free.
func TestREADMEProgramRuns(t *testing.T) {
	t.Parallel()
	program := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindStringSubmatch(readme(t))
	if program == nil {
		t.Fatal("the README has no program")
	}
	sends, stop := runREADMEProgram(t, program[1])
	defer func() {
		if log := stop(); strings.Count(log, "the money moves now") != 1 {
			t.Errorf("the money did not move once\n%s", log)
		}
	}()
	var bodies []string
	for _, words := range curlCommands(t, "README.md") {
		resp, err := sends.Do(curlRequest(t, words).WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		if err != nil || resp.StatusCode != http.StatusCreated || replayed != (len(bodies) == 1) {
			t.Errorf("curl no. %d: %d %q, %v, replayed %v, want 201, and the second replayed", len(bodies)+1, resp.StatusCode, body, err, replayed)
		}
		bodies = append(bodies, string(body))
	}
	if len(bodies) != 2 || bodies[0] != bodies[1] {
		t.Errorf("answers = %q, want the same one twice", bodies)
	}
}

// runREADMEProgram builds and starts a program that listens on 127.0.0.1:8080. The client reaches
// it over a Unix socket. stop kills it and returns what it has printed.
func runREADMEProgram(t *testing.T, program string, env ...string) (client *http.Client, stop func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	code := strings.Replace(program, `r.Run("127.0.0.1:8080")`, "r.RunUnix("+strconv.Quote(socket)+")", 1)
	if code == program {
		t.Fatal("the README's program does not listen on 127.0.0.1:8080")
	}
	binary := buildREADMEProgram(t, code)
	var log bytes.Buffer
	service := exec.CommandContext(t.Context(), binary)
	service.Stdout, service.Stderr, service.Env = &log, &log, append(os.Environ(), env...)
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceValue(func() string {
		_ = service.Process.Kill()
		_ = service.Wait()
		return log.String()
	})
	t.Cleanup(func() { stop() })
	kit.Eventually(t, "the README's program", func() error {
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return client, stop
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// curlCommands returns the curl commands of a page, in words.
func curlCommands(t *testing.T, page string) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commandsOf(t, documents.Page{Path: page, Text: string(text)}) {
		if c.Words[0] == "curl" {
			commands = append(commands, c.Words)
		}
	}
	return commands
}

// curlRequest makes the request of a curl command. It knows the options of the README, and
// no others.
func curlRequest(t *testing.T, words []string) *http.Request {
	t.Helper()
	method, target, body, header := http.MethodGet, "", "", http.Header{}
	for i := 1; i < len(words); i++ {
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
			target = w
		default:
			t.Fatalf("this test does not know curl's %q", w)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	return r
}

// buildREADMEProgram returns the path of the compiled program.
func buildREADMEProgram(t *testing.T, code string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "readme")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}
