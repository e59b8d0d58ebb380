package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for processes, but each start has ten seconds
	goleak.VerifyTestMain(testserver.M{M: m})
}

// process is a running service.
type process struct {
	*kit.Process
	t         *testing.T
	url, grpc string // grpc is an address
}

// launch starts the program with port 0, and kills it in the test's clean-up.
func launch(t *testing.T, args ...string) *process { t.Helper(); return launchWith(t, nil, args...) }

// launchWith launches with more variables in the environment.
func launchWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(kit.Binary(t, "./example-payments"), append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}, env...)
	return &process{Process: kit.StartProcess(t, fmt.Sprintf("the sample with %q", args), cmd), t: t}
}

// serve launches and waits for the ready line.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	return launch(t, args...).ready()
}

// ready waits for the ready line and reads the addresses.
func (p *process) ready() *process {
	p.t.Helper()
	line := p.WaitOut(p.t, "ready")
	ports := regexp.MustCompile(`^ready http=(127\.0\.0\.1:[1-9]\d*) grpc=(127\.0\.0\.1:[1-9]\d*)$`).FindStringSubmatch(line)
	if ports == nil || ports[1] == ports[2] {
		p.t.Fatalf("ready line %q", line)
	}
	p.url, p.grpc = "http://"+ports[1], ports[2]
	return p
}

// stops ends the process in order.
func (p *process) stops() {
	p.t.Helper()
	if code := p.Terminate(p.t); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// refused launches what cannot start.
func refused(t *testing.T, args ...string) *process {
	t.Helper()
	p := launch(t, args...)
	if code := p.WaitExit(t).Code; code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	return p
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
