package answer

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/operate"
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
		{`{"status":201,"headers":{"Location":["a\r\nb"]}}`, httpRoute, "printable ASCII"},
		{`{"status":201,"headers":{"Location":["a"],"location":["b"]}}`, httpRoute, "twice"},
		{"{\"status\":201,\"body\":\"\xff\"}", httpRoute, "UTF-8"},
		{`{"status":201,"headers":{"Location":["ä"]}}`, httpRoute, "printable ASCII"},
		{`{"status":201,"headers":{"Location":["\u202e"]}}`, httpRoute, "printable ASCII"},
		{`{"status":201,"headers":{"Location":["a"],"Location":["b"]}}`, httpRoute, "twice"},
		{`{"status":201,"headers":{"Location":[null]}}`, httpRoute, "null"},
		{`{"status":201,"headers":{"Location":null}}`, httpRoute, "headers is not"},
		{`{"status":201,"headers":null}`, httpRoute, "headers is not"},
		{`{"status":201,"headers":{"Loca tion":["a"]}}`, httpRoute, "not the name"},
		{`{"status":201,"body":null}`, httpRoute, "body is not a text"},
		{`{"status":201,"body":"\ud800"}`, httpRoute, "surrogate"},
		{`{"status":201,"body":"\\\ud800x"}`, httpRoute, "surrogate"},
		{`{"status":201,"body":"\ud83d\u0041"}`, httpRoute, "surrogate"},
		{`{"status":201,"body":"\udc00"}`, httpRoute, "surrogate"},
		{`{"status":201,"headers":{"Location":["\ud800"]}}`, httpRoute, "surrogate"},
		{`{"status":0,"headers":{"etag":["a\tb"]}}`, grpcRoute, "printable ASCII"},
		{`{"status":0,"headers":{"grpc-status":["0"]}}`, grpcRoute, "never replayed"},
		{`{"status":0,"headers":{"user-agent":["a"]}}`, grpcRoute, "never replayed"},
		{`{"status":0}`, httpRoute, "looks like HTTP"},
		{`{"status":0}`, "/v1/payments/", "looks like HTTP"},
		{`{"status":0}`, "/v1/payments/{id}", "looks like HTTP"},
		{`{"status":0}`, "/v1/payments/refund", "looks like HTTP"},
		{`{"status":16}`, "/pay", "looks like HTTP"},
		{`{"status":17}`, grpcRoute, "0 (OK) to 16"},
		{`{"status":201}`, grpcRoute, "looks like a gRPC method"},
		{`{"status":0,"body":"b"}`, grpcRoute, "body_base64"},
		{`{"status":0,"body_base64":"Yg=="}`, grpcRoute, "not a protobuf message"},
		{`{"status":0,"message_type":"not a name"}`, grpcRoute, "message_type"},
		{`{"status":5,"body_base64":""}`, grpcRoute, "without a message"},
		{`{"status":0,"headers":{"Content-Type":["a"]}}`, grpcRoute, "never replayed"},
		{`{"status":0,"headers":{"x-other":["a"]}}`, grpcRoute, "--allow-header"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			ans, err := parse([]byte(tt.file))
			if err == nil {
				_, err = ans.Response(tt.route, "", nil)
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
		{`{"status":200,"body":"\ud83d\ude00\\ud800\u00e4"}`, httpRoute, 200, "😀\\ud800ä"},
		{`{"status":201,"body":"b"}`, "/v1/payments", 201, "b"},
		{`{"status":201,"body":"b"}`, "/v1/payments/", 201, "b"},
		{`{"status":201,"body":"b"}`, "pay", 201, "b"},
		{`{"status":0,"body_base64":"CgE3"}`, "/Greeter/SayHello", 0, "\n*\n#type.googleapis.com/idemctl.Unnamed\x12\x03\n\x017"},
		{`{"status":0,"body_base64":"CgE3"}`, grpcRoute, 0, "\n*\n#type.googleapis.com/idemctl.Unnamed\x12\x03\n\x017"},
		{`{"status":0,"message_type":"p.v1.M"}`, grpcRoute, 0, "\n\x1c\n\x1atype.googleapis.com/p.v1.M"},
		{`{"status":5,"body":"gone"}`, grpcRoute, 5, "\x10\x05\x1a\x04gone"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			ans, err := parse([]byte(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			r, err := ans.Response(tt.route, "", []string{"x-other"})
			if err != nil || r.Status != tt.status || string(r.Body) != tt.body || r.Omitted {
				t.Errorf("response = %+v, %v, want %d and %q", r, err, tt.status, tt.body)
			}
			if names := slices.Sorted(maps.Keys(r.Header)); len(ans.headers) > 0 && !slices.Equal(names, []string{"Content-Type", "X-Other"}) {
				t.Errorf("headers = %q", r.Header)
			}
		})
	}
}

// --transport overrules the name of a route, but not the status.
func TestAnswerOfAToldTransport(t *testing.T) {
	tests := []struct {
		file, route string
		told        operate.Transport
		want        string // error; "": none
	}{
		{`{"status":201}`, grpcRoute, operate.OverHTTP, ""},
		{`{"status":0}`, httpRoute, operate.OverGRPC, ""},
		{`{"status":201}`, grpcRoute, operate.OverGRPC, "--transport grpc"},
		{`{"status":5}`, httpRoute, operate.OverHTTP, "--transport http"},
	}
	for _, tt := range tests {
		ans, err := parse([]byte(tt.file))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ans.Response(tt.route, tt.told, nil)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s of %s, told %s: %v, want %q", tt.file, tt.route, tt.told, err, tt.want)
		}
	}
}

func TestAllowedHeaders(t *testing.T) {
	tests := []struct{ status, route, allow, want string }{
		{"201", httpRoute, "X-Other", ""},
		{"201", httpRoute, "x other", "not the name"},
		{"201", httpRoute, "x:other", "not the name"},
		{"201", httpRoute, "", "not the name"},
		{"201", httpRoute, "set-cookie", "never replayed"},
		{"0", grpcRoute, "X-Other", ""},
		{"0", grpcRoute, "trace-bin", ""},
		{"0", grpcRoute, "x!", "not the name"},
		{"0", grpcRoute, "-bin", "not the name"},
		{"0", grpcRoute, "grpc-status", "never replayed"},
		{"0", grpcRoute, "content-type", "never replayed"},
	}
	for _, tt := range tests {
		ans, err := parse([]byte(`{"status":` + tt.status + `}`))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ans.Response(tt.route, "", []string{tt.allow})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("--allow-header %q of %s: %v, want %q", tt.allow, tt.route, err, tt.want)
		}
	}
	ans, err := parse([]byte(`{"status":0,"headers":{"Trace-Bin":["AP8="],"x-text":["a"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ans.Response(grpcRoute, "", []string{"trace-bin", "x-text"})
	if err != nil || r.Header["trace-bin"][0] != "\x00\xff" || r.Header["x-text"][0] != "a" {
		t.Errorf("metadata = %q, %v", r.Header, err)
	}
}
