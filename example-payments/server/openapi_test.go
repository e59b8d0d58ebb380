package server_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
)

// description is the part of /openapi.json that is compared with the server.
type description struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string                    `json:"operationId"`
		Responses   map[string]describedReply `json:"responses"`
	} `json:"paths"`
}

type describedReply struct {
	Content map[string]struct {
		Schema struct {
			AllOf []struct {
				Properties struct {
					Code struct{ Enum []string }
				}
			} `json:"allOf"`
		}
	}
}

// codes are the codes of the problems in a reply.
func (r describedReply) codes() (all []string) {
	for _, c := range r.Content {
		for _, part := range c.Schema.AllOf {
			all = append(all, part.Properties.Code.Enum...)
		}
	}
	return all
}

func describe(t *testing.T, c *client) description {
	t.Helper()
	var d description
	a := c.do("GET", "/openapi.json", "", "Authorization", "")
	if err := json.Unmarshal([]byte(a.body), &d); err != nil || a.status != http.StatusOK || d.OpenAPI != "3.1.0" {
		t.Fatalf("GET /openapi.json: %d, %v, version %s", a.status, err, d.OpenAPI)
	}
	return d
}

var parameter = regexp.MustCompile(`:(\w+)`)

// TestDescriptionHasTheRoutes compares the paths with the routes of the server.
func TestDescriptionHasTheRoutes(t *testing.T) {
	b, c := setup(t)
	var described, served []string
	for path, methods := range describe(t, c).Paths {
		for method := range maps.Keys(methods) {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	var routes []string
	b.instance(t, func(cfg *server.Config) {
		var err error
		if routes, err = server.Routes(*cfg); err != nil {
			t.Fatal(err)
		}
	})
	for _, r := range routes {
		method, path, _ := strings.Cut(r, " ")
		if method != http.MethodHead && path != "/" && !strings.HasPrefix(path, "/assets/") && !strings.HasPrefix(path, "/docs/") { // pages for people
			served = append(served, parameter.ReplaceAllString(r, "{$1}"))
		}
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described: %q\nserved:    %q", described, served)
	}
}

// TestDescribedCodesHaveTheirStatus wants each code below the status with which the server
// answers it.
func TestDescribedCodesHaveTheirStatus(t *testing.T) {
	_, c := setup(t)
	for path, methods := range describe(t, c).Paths {
		for method, operation := range methods {
			for status, reply := range operation.Responses {
				for _, code := range reply.codes() {
					if want := server.StatusOf(code); status != want {
						t.Errorf("%s %s: %s is below %s, want %s", method, path, code, status, want)
					}
				}
			}
		}
	}
}

// TestAnswersAreDescribed sends requests to every route and compares status, media type and
// code with the description.
func TestAnswersAreDescribed(t *testing.T) {
	_, c := setup(t)
	d := describe(t, c)
	paid := c.pay("k", order)
	token := c.do("POST", "/v1/tokens", "").field("token")
	key := []string{"Idempotency-Key", "k"}
	noKey := []string{"Authorization", ""}
	poor := strings.Replace(order, "1250", "9000000", 1)
	for _, r := range []struct {
		path, method, target, body string
		header                     []string
		status                     int
	}{
		{"/v1/payments", "POST", "", order, key, 201},
		{"/v1/payments", "POST", "", strings.Replace(order, "1250", "1251", 1), key, 422},
		{"/v1/payments", "POST", "", order, nil, 400},
		{"/v1/payments", "POST", "", "{", key, 400},
		{"/v1/payments", "POST", "", order, noKey, 401},
		{"/v1/payments", "POST", "", poor, []string{"Idempotency-Key", "poor"}, 402},
		{"/v1/payments", "POST", "", strings.Replace(order, "bob", "nobody", 1), []string{"Idempotency-Key", "nobody"}, 404},
		{"/v1/trades", "POST", "", order, []string{"Idempotency-Key", token}, 201},
		{"/v1/trades", "POST", "", order, key, 403},
		{"/v1/payments", "GET", "", "", nil, 200},
		{"/v1/payments", "GET", "?limit=0", "", nil, 400},
		{"/v1/payments/{id}", "GET", paid.field("id"), "", nil, 200},
		{"/v1/payments/{id}", "GET", "none", "", nil, 404},
		{"/v1/tokens", "POST", "", "", nil, 201},
		{"/v1/accounts", "GET", "", "", nil, 200},
		{"/v1/accounts/{id}", "GET", "alice", "", nil, 200},
		{"/v1/accounts/{id}", "GET", "nobody", "", nil, 404},
		{"/v1/idempotency", "GET", "", "", key, 200},
		{"/v1/idempotency", "GET", "", "", nil, 400},
		{"/v1/timeline", "GET", "", "", nil, 400},
		{"/healthz", "GET", "", "", noKey, 200},
		{"/readyz", "GET", "", "", noKey, 200},
		{"/metrics", "GET", "", "", noKey, 200},
		{"/openapi.json", "GET", "", "", noKey, 200},
	} {
		target := strings.Replace(r.path, "{id}", r.target, 1)
		if target == r.path {
			target += r.target
		}
		a := c.do(r.method, target, r.body, r.header...)
		reply, ok := d.Paths[r.path][strings.ToLower(r.method)].Responses[strconv.Itoa(a.status)]
		if a.status != r.status || !ok {
			t.Errorf("%s %s: %d %s, want a described %d", r.method, target, a.status, a.body, r.status)
			continue
		}
		mediaType, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
		if _, ok := reply.Content[mediaType]; !ok {
			t.Errorf("%s %s: %d has %s, want one of %v", r.method, target, a.status, mediaType, reply.Content)
		}
		if codes := reply.codes(); mediaType == "application/problem+json" && !slices.Contains(codes, a.field("code")) {
			t.Errorf("%s %s: %d has code %s, want one of %v", r.method, target, a.status, a.field("code"), codes)
		}
	}
}
