package api

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"google.golang.org/grpc/codes"
)

const sample = "../../example-payments"

// serve starts the sample and returns its addresses.
func serve(t *testing.T) (overHTTP, overGRPC string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "example-payments")
	build(t, "../..", binary, "./example-payments")
	cmd := exec.CommandContext(t.Context(), binary, "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	m := regexp.MustCompile(`^ready http=(\S+) grpc=(\S+)\n$`).FindStringSubmatch(line)
	if err != nil || m == nil {
		t.Fatalf("the sample printed %q, %v", line, err)
	}
	return m[1], m[2]
}

func build(t *testing.T, dir, binary, what string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, what)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s = %v\n%s", what, err, out)
	}
}

// TestAPIFollowsItsDescription validates the description against the schema of OpenAPI 3.1,
// and requests and answers of the running sample against the description.
func TestAPIFollowsItsDescription(t *testing.T) {
	text, err := os.ReadFile(sample + "/server/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, faults := v.ValidateDocument(); !ok {
		for _, f := range faults {
			t.Errorf("openapi.json: %s: %s %v", f.Message, f.Reason, f.SchemaValidationErrors)
		}
	}
	addr, _ := serve(t)
	const order = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n"}`
	for _, r := range []struct {
		method, path, key, body string
		status                  int
	}{
		{"POST", "/v1/payments", "k", order, 201},
		{"POST", "/v1/payments", "k", order, 201},
		{"POST", "/v1/payments", "k", strings.Replace(order, "1250", "1", 1), 422},
		{"POST", "/v1/payments", "k2", strings.Replace(order, "1250", "99000000", 1), 402},
		{"POST", "/v1/payments", "k3", strings.Replace(order, "bob", "nobody", 1), 404},
		{"POST", "/v1/trades", "k", order, 403},
		{"POST", "/v1/tokens", "", "", 201},
		{"GET", "/v1/payments", "", "", 200},
		{"GET", "/v1/payments/none", "", "", 404},
		{"GET", "/v1/accounts", "", "", 200},
		{"GET", "/v1/accounts/alice", "", "", 200},
		{"GET", "/v1/idempotency", "k", "", 200},
		{"GET", "/v1/idempotency", "unused", "", 200},
		{"GET", "/healthz", "", "", 200},
		{"GET", "/readyz", "", "", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+addr+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer demo")
		if r.key != "" {
			req.Header.Set("Idempotency-Key", r.key)
		}
		if r.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != r.status {
			t.Errorf("%s %s: %d %s, %v, want %d", r.method, r.path, res.StatusCode, body, err, r.status)
		}
		res.Body, req.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(strings.NewReader(r.body))
		if ok, faults := v.ValidateHttpRequestResponse(req, res); !ok {
			for _, f := range faults {
				t.Errorf("%s %s %d %s: %s: %s %v", r.method, r.path, res.StatusCode, body, f.Message, f.Reason, f.SchemaValidationErrors)
			}
		}
	}
}

// wanted is the comment in front of a request: its status.
var wanted = regexp.MustCompile(`(?m)^# (\d{3}|OK|[A-Z][a-z]+[A-Z]?[a-z]*): `)

// prelude notes the status of each request in the file got.
const prelude = `
curl() { command curl -sS -D "$DIR/head" "$@"; sed -n '1s/[^ ]* \([0-9]*\).*/\1/p' "$DIR/head" >> "$DIR/got"; }
grpcurl() { local rc=0; "$DIR/grpcurl" "$@" || rc=$?; echo "$((rc == 0 ? 0 : rc - 64))" >> "$DIR/got"; }
`

// TestCollectionOfRequests runs requests.sh and compares the statuses with its comments.
func TestCollectionOfRequests(t *testing.T) {
	script, err := os.ReadFile(sample + "/requests.sh")
	if err != nil {
		t.Fatal(err)
	}
	overHTTP, overGRPC := serve(t)
	dir := t.TempDir()
	build(t, ".", filepath.Join(dir, "grpcurl"), "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", prelude+string(script))
	cmd.Env = append(os.Environ(), "DIR="+dir, "HTTP="+overHTTP, "GRPC="+overGRPC)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("requests.sh = %v\n%s", err, out)
	}
	noted, err := os.ReadFile(filepath.Join(dir, "got"))
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, m := range wanted.FindAllSubmatch(script, -1) {
		want = append(want, string(m[1]))
	}
	for status := range strings.FieldsSeq(string(noted)) {
		if n, err := strconv.Atoi(status); err == nil && n < 100 {
			status = codes.Code(n).String()
		}
		got = append(got, status)
	}
	if !slices.Equal(got, want) || len(want) < 20 {
		t.Errorf("statuses = %q, want %q\n%s", got, want, out)
	}
	if n := bytes.Count(bytes.ToLower(out), []byte("idempotent-replayed: true")); n != 3 {
		t.Errorf("the output tells %d times of a replay, want one header over HTTP, and a header and a trailer over gRPC\n%s", n, out)
	}
}
