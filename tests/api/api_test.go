package api

import (
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

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"google.golang.org/grpc/codes"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

const sample = "../../example-payments"

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// description has the routes of openapi.json.
type description struct{ routes routers.Router }

// describe reads openapi.json, and wants it to follow OpenAPI 3.1.
func describe(t *testing.T) description {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(sample + "/server/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("openapi.json: %v", err)
	}
	doc.Servers = nil // "/" is the server of the document, and the router wants a whole URL there
	routes, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return description{routes}
}

// check compares a request and its answer with the description.
func (d description) check(req *http.Request, status int, header http.Header, body []byte) error {
	route, params, err := d.routes.FindRoute(req)
	if err != nil {
		return err
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, RejectWhenRequestBodyNotSpecified: true,
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: options}
	if err := openapi3filter.ValidateRequest(req.Context(), in); err != nil {
		return err
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: status, Header: header, Options: options}
	return openapi3filter.ValidateResponse(req.Context(), out.SetBodyBytes(body))
}

// TestAPIFollowsItsDescription validates the description as OpenAPI 3.1, and requests and answers
// of the running sample against it.
func TestAPIFollowsItsDescription(t *testing.T) {
	api := describe(t)
	addr := testserver.StartSample(t).HTTP
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
		req.Body = io.NopCloser(strings.NewReader(r.body))
		if err := api.check(req, res.StatusCode, res.Header, body); err != nil {
			t.Errorf("%s %s %d %s: %v", r.method, r.path, res.StatusCode, body, err)
		}
	}
}

// A validator that lets everything through would show nothing.
func TestWrongAnswersAreRefused(t *testing.T) {
	api := describe(t)
	text := http.Header{"Content-Type": {"application/json"}}
	for name, a := range map[string]struct {
		status int
		header http.Header
		body   string
		good   bool
	}{
		"good":           {200, text, `{"id":"alice","balance":1,"currency":"USD"}`, true},
		"status":         {204, text, ``, false},
		"media type":     {200, http.Header{"Content-Type": {"text/html"}}, `<p>`, false},
		"type":           {200, text, `{"id":"alice","balance":"1","currency":"USD"}`, false},
		"missing":        {200, text, `{"id":"alice"}`, false},
		"code elsewhere": {404, http.Header{"Content-Type": {"application/problem+json"}}, `{"title":"t","status":404,"code":"key-reused"}`, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/accounts/alice", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := api.check(req, a.status, a.header, []byte(a.body)); (err == nil) != a.good {
			t.Errorf("%s: the answer %d %s gives %v", name, a.status, a.body, err)
		}
	}
}

// wanted is the comment in front of a request: its status.
var wanted = regexp.MustCompile(`(?m)^# (\d{3}|OK|[A-Z][a-z]+[A-Z]?[a-z]*): `)

// prelude notes the status of each request in the file got.
const prelude = `
curl() { command curl -sS -D "$DIR/head" "$@"; sed -n '1s/[^ ]* \([0-9]*\).*/\1/p' "$DIR/head" >> "$DIR/got"; }
grpcurl() { [[ -x $DIR/grpcurl ]] || return 0; local rc=0; "$DIR/grpcurl" "$@" || rc=$?; echo "$((rc == 0 ? 0 : rc - 64))" >> "$DIR/got"; }
`

// buildGRPCurl puts grpcurl into a folder. It is nil without the build tag grpcurl, because its
// dependencies compile for most of a minute. The lines for grpcurl then do nothing.
var buildGRPCurl func(t *testing.T, dir string)

// TestCollectionOfRequests runs requests.sh and compares the statuses with its comments.
func TestCollectionOfRequests(t *testing.T) {
	script, err := os.ReadFile(sample + "/requests.sh")
	if err != nil {
		t.Fatal(err)
	}
	service := testserver.StartSample(t)
	dir, replays := t.TempDir(), 1 // a header over HTTP
	if buildGRPCurl != nil {
		buildGRPCurl(t, dir)
		replays += 2 // a header and a trailer over gRPC
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", prelude+string(script))
	cmd.Env = append(os.Environ(), "DIR="+dir, "HTTP="+service.HTTP, "GRPC="+service.GRPC)
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
		if _, err := strconv.Atoi(string(m[1])); err == nil || buildGRPCurl != nil {
			want = append(want, string(m[1]))
		}
	}
	for status := range strings.FieldsSeq(string(noted)) {
		if n, err := strconv.Atoi(status); err == nil && n < 100 {
			status = codes.Code(n).String()
		}
		got = append(got, status)
	}
	if !slices.Equal(got, want) || len(want) < 13 {
		t.Errorf("statuses = %q, want %q\n%s", got, want, out)
	}
	if n := bytes.Count(bytes.ToLower(out), []byte("idempotent-replayed: true")); n != replays {
		t.Errorf("the output tells %d times of a replay, want %d\n%s", n, replays, out)
	}
}
