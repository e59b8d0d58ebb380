package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	httpRoute = "POST /v1/payments"
	grpcRoute = "/payments.v1.PaymentService/CreatePayment"
)

func TestAnswerIsRefused(t *testing.T) {
	tests := []struct{ file, route, want string }{
		{``, httpRoute, "not a JSON object"},
		{`[]`, httpRoute, "not a JSON object"},
		{`{"status":201`, httpRoute, "not JSON"},
		{`{"status":201} {}`, httpRoute, "follows"},
		{`{"status":201,"x":1}`, httpRoute, `unknown member "x"`},
		{`{"Status":201}`, httpRoute, `unknown member "Status"`},
		{`{"status":201,"status":202}`, httpRoute, "twice"},
		{`{"body":"b"}`, httpRoute, "no status"},
		{`{"status":"201"}`, httpRoute, "status is not a whole number"},
		{`{"status":201.5}`, httpRoute, "status is not a whole number"},
		{`{"status":null}`, httpRoute, "status is not a whole number"},
		{`{"status":0}`, httpRoute, "from 200 to 599"},
		{`{"status":101}`, httpRoute, "from 200 to 599"},
		{`{"status":600}`, httpRoute, "from 200 to 599"},
		{`{"status":-1}`, httpRoute, "from 200 to 599"},
		{`{"status":201,"body":"b","body_base64":"Yg=="}`, httpRoute, "both"},
		{`{"status":201,"body":"","body_base64":""}`, httpRoute, "both"},
		{`{"status":201,"body":{}}`, httpRoute, "body is not a text"},
		{`{"status":201,"body_base64":"%"}`, httpRoute, "base64"},
		{`{"status":204,"body":"b"}`, httpRoute, "no body"},
		{`{"status":201,"message_type":"m"}`, httpRoute, "gRPC"},
		{`{"status":201,"headers":{"Content-Type":"text/plain"}}`, httpRoute, "headers is not"},
		{`{"status":201,"headers":[]}`, httpRoute, "headers is not"},
		{`{"status":201,"headers":{"Set-Cookie":["a"]}}`, httpRoute, "never replayed"},
		{`{"status":201,"headers":{"X-Other":["a"]}}`, httpRoute, "--allow-header"},
		{`{"status":201,"headers":{"Location":[]}}`, httpRoute, "no value"},
		{`{"status":201,"headers":{"Location":["a\r\nb"]}}`, httpRoute, "control character"},
		{`{"status":201,"headers":{"Location":["a"],"location":["b"]}}`, httpRoute, "twice"},
		{"{\"status\":201,\"body\":\"\xff\"}", httpRoute, "UTF-8"},
		{`{"status":201}`, grpcRoute, "gRPC method"},
		{`{"status":0,"body":"b"}`, grpcRoute, "body_base64"},
		{`{"status":0,"body_base64":"Yg=="}`, grpcRoute, "not a protobuf message"},
		{`{"status":0,"message_type":"not a name"}`, grpcRoute, "message_type"},
		{`{"status":5,"body_base64":""}`, grpcRoute, "without a message"},
		{`{"status":0,"headers":{"Content-Type":["a"]}}`, grpcRoute, "--allow-header"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			ans, err := parseAnswer([]byte(tt.file))
			if err == nil {
				_, err = ans.response(tt.route, nil)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %v, want one of %q", err, tt.want)
			}
		})
	}
}

func TestAnswerIsStored(t *testing.T) {
	tests := []struct {
		file, route string
		status      int
		body        string
	}{
		{`{"status":201,"headers":{"content-type":["a","b"],"X-Other":["c"]},"body":"ä\n"}`, httpRoute, 201, "ä\n"},
		{`{"status":200,"body_base64":"AP8="}`, httpRoute, 200, "\x00\xff"},
		{`{"status":402}`, httpRoute, 402, ""},
		{`{"status":0,"body_base64":"CgE3"}`, grpcRoute, 0, "\x01\x0fidemctl.Unnamed\x01\x03\n\x017"},
		{`{"status":0,"message_type":"p.v1.M"}`, grpcRoute, 0, "\x01\x06p.v1.M\x01\x00"},
		{`{"status":5,"body":"gone"}`, grpcRoute, 5, "\x01\x00\x00\b\x05\x12\x04gone"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			ans, err := parseAnswer([]byte(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			r, err := ans.response(tt.route, []string{"x-other"})
			if err != nil || r.Status != tt.status || string(r.Body) != tt.body || r.Omitted {
				t.Errorf("response = %+v, %v, want %d and %q", r, err, tt.status, tt.body)
			}
			if names := slices.Sorted(maps.Keys(r.Header)); len(ans.headers) > 0 && !slices.Equal(names, []string{"Content-Type", "X-Other"}) {
				t.Errorf("headers = %q", r.Header)
			}
		})
	}
}

// answerFile writes a FILE.
func answerFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
