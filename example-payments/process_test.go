package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// suite removes the built programs after the tests.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	defer func() {
		if dir, err := builtDir(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}()
	testserver.ParallelTests(4) // most of them wait for processes, but each start has ten seconds
	return testserver.Main(s.m)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

var builtDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "example-payments-") })

// built is the service, and beside it idemctl, built once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := builtDir()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-o", dir, ".", "../cmd/idemctl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return filepath.Join(dir, "example-payments"), nil
})

// process is a running service.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	grpc string        // address
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	stdout []string
	stderr []string
	more   chan struct{} // closed and replaced with every line
}

// launch starts the program with port 0, and kills it in the test's clean-up.
func launch(t *testing.T, args ...string) *process { t.Helper(); return launchWith(t, nil, args...) }

// launchWith launches with more variables in the environment.
func launchWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, done: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(path, append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	p.cmd.Env = append(p.cmd.Env, env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { p.read(out, &p.stdout) })
	readers.Go(func() { p.read(errs, &p.stderr) })
	go func() {
		defer close(p.done)
		readers.Wait()
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%v:\n%s", p.cmd.Args, strings.Join(p.lines(&p.stderr), "\n"))
		}
	})
	return p
}

func (p *process) read(r io.Reader, to *[]string) {
	for s := bufio.NewScanner(r); s.Scan(); {
		p.mu.Lock()
		*to = append(*to, s.Text())
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *process) lines(of *[]string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), *of...)
}

// await returns the first line that holds text, as soon as it is written.
func (p *process) await(of *[]string, text string) string {
	p.t.Helper()
	timeout, done, ended := time.After(time.Minute), p.done, false
	for {
		p.mu.Lock()
		more, lines := p.more, *of
		p.mu.Unlock()
		for _, line := range lines {
			if strings.Contains(line, text) {
				return line
			}
		}
		if ended {
			p.t.Fatalf("ended without %q: %v", text, p.lines(&p.stderr))
		}
		select {
		case <-more:
		case <-done: // all lines have been read: look once more
			done, ended = nil, true
		case <-timeout:
			p.t.Fatalf("no %q within a minute", text)
		}
	}
}

// serve launches and waits for the ready line.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	p := launch(t, args...)
	p.awaitReady()
	return p
}

// awaitReady waits for the ready line and reads the addresses.
func (p *process) awaitReady() {
	p.t.Helper()
	line := p.await(&p.stdout, "ready")
	ports := regexp.MustCompile(`^ready http=(127\.0\.0\.1:[1-9]\d*) grpc=(127\.0\.0\.1:[1-9]\d*)$`).FindStringSubmatch(line)
	if ports == nil || ports[1] == ports[2] {
		p.t.Fatalf("ready line %q", line)
	}
	p.url, p.grpc = "http://"+ports[1], ports[2]
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be over
	<-p.done
}

// exit waits for the end and returns the exit code.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("still runs after %v", within)
		return -1
	}
}

func (p *process) term() { p.t.Helper(); p.signal(syscall.SIGTERM) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

const orderBody = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n"}`

// request sends one as merchant_demo and returns status and body.
func (p *process) request(method, path, key, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer demo")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), errors.Join(err, res.Body.Close())
}

// requestUntil repeats a request until it is answered with the status.
func (p *process) requestUntil(status int, method, path, key, body string) string {
	p.t.Helper()
	got, answer, err := 0, "", error(nil)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if got, answer, err = p.request(method, path, key, body); got == status {
			return answer
		}
	}
	p.t.Fatalf("%s %s: %d %s %v for a minute, want %d", method, path, got, answer, err, status)
	return ""
}

// payUntilSettled repeats a payment until it is no longer in progress.
func (p *process) payUntilSettled(key string) (int, string) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		status, body, err := p.request("POST", "/v1/payments", key, orderBody)
		if err == nil && status != http.StatusConflict && status != http.StatusServiceUnavailable {
			return status, body
		}
	}
	p.t.Fatalf("payment %s is not settled after a minute", key)
	return 0, ""
}

func (p *process) wantPayments(n int) {
	p.t.Helper()
	if _, list, err := p.request("GET", "/v1/payments", "", ""); err != nil || strings.Count(list, `"id":`) != n {
		p.t.Errorf("payments %s, %v, want %d", list, err, n)
	}
}
