package idem

import (
	"errors"
	"strings"
	"testing"
)

func fingerprintOf(t *testing.T, r RequestParts) Fingerprint {
	t.Helper()
	f, err := RequestFingerprint(1, r)
	if err != nil || f.Version != 1 || f.IsZero() {
		t.Fatalf("RequestFingerprint(1, %+v) = %v, %v", r, f, err)
	}
	return f
}

func payment(change func(*RequestParts)) RequestParts {
	r := RequestParts{
		Operation: "http POST /v1/payments", Query: "currency=USD&debug=1",
		ContentType: "application/json", Body: []byte(`{"from":"alice","amount":1250}`),
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestRequestFingerprintSame(t *testing.T) {
	base := payment(nil)
	tests := []struct {
		name string
		a, b RequestParts
	}{
		{"nothing changed", base, base},
		{"member order and space", base, payment(func(r *RequestParts) { r.Body = []byte(" {\"amount\":1250, \"from\":\"\\u0061lice\"}\n") })},
		{"order of query names", base, payment(func(r *RequestParts) { r.Query = "debug=1&currency=USD" })},
		{"escapes in the query", base, payment(func(r *RequestParts) { r.Query = "&%64ebug=1&&currency=US%44&" })},
		{"a name without a value", payment(func(r *RequestParts) { r.Query = "a" }), payment(func(r *RequestParts) { r.Query = "a=" })},
		{"a space in the query", payment(func(r *RequestParts) { r.Query = "a=b+c" }), payment(func(r *RequestParts) { r.Query = "a=b%20c" })},
		{"case of the media type", base, payment(func(r *RequestParts) { r.ContentType = " Application/JSON " })},
		{
			"order and case of media type parameters",
			payment(func(r *RequestParts) { r.ContentType = `application/json; charset=UTF-8; v="1"` }),
			payment(func(r *RequestParts) { r.ContentType = `application/json;V=1;Charset="utf-8"` }),
		},
		{"identity is no encoding", base, payment(func(r *RequestParts) { r.ContentEncoding = "Identity" })},
		{
			"case of the encoding",
			payment(func(r *RequestParts) { r.ContentEncoding = "gzip" }),
			payment(func(r *RequestParts) { r.ContentEncoding = "GZIP" }),
		},
		{
			"a +json type",
			payment(func(r *RequestParts) { r.ContentType = "application/vnd.pay+json" }),
			payment(func(r *RequestParts) {
				r.ContentType = "application/vnd.pay+json"
				r.Body = []byte(`{"amount":1250,"from":"alice"}`)
			}),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if a, b := fingerprintOf(t, tt.a), fingerprintOf(t, tt.b); a != b {
				t.Errorf("fingerprints of %+v and %+v differ", tt.a, tt.b)
			}
		})
	}
}

func TestRequestFingerprintDiffers(t *testing.T) {
	amount := func(s string) RequestParts {
		return payment(func(r *RequestParts) { r.Body = []byte(`{"amount":` + s + `}`) })
	}
	query := func(s string) RequestParts { return payment(func(r *RequestParts) { r.Query = s }) }
	raw := func(contentType, body string) RequestParts {
		return payment(func(r *RequestParts) { r.ContentType, r.Body = contentType, []byte(body) })
	}
	base := payment(nil)
	tests := []struct {
		name string
		a, b RequestParts
	}{
		{"bug 14: the route", base, payment(func(r *RequestParts) { r.Operation = "http POST /v1/refunds" })},
		{"the method", base, payment(func(r *RequestParts) { r.Operation = "http PUT /v1/payments" })},
		{"bug 13: the query", base, query("currency=EUR&debug=1")},
		{"bug 13: no query", base, query("")},
		{"the order of values", query("a=1&a=2"), query("a=2&a=1")},
		{"an escaped ampersand", query("a=1%26b=2"), query("a=1&b=2")},
		{"a malformed escape", query("a=%zz"), query("a=%25zz")},
		{"a semicolon", query("a=1;b=2"), query("a=1&b=2")},
		{"an escaped semicolon", query("a=1;b=2"), query("a=1%3Bb=2")},
		{"the twentieth digit", amount("12345678901234567891"), amount("12345678901234567892")},
		{"beyond float64", amount("9007199254740993"), amount("9007199254740992")},
		{"1 and 1.0", amount("1"), amount("1.0")},
		{"1 and 1e0", amount("1"), amount("1e0")},
		{"number and string", amount("1"), amount(`"1"`)},
		{"the media type", base, raw("application/vnd.pay+json", string(base.Body))},
		{"JSON sent as text", raw("text/plain", `{"a":1,"b":2}`), raw("text/plain", `{"b":2,"a":1}`)},
		{"bug 17: the content encoding", base, payment(func(r *RequestParts) { r.ContentEncoding = "gzip" })},
		{"no body and an empty object", raw("application/json", ""), raw("application/json", "{}")},
		{"no body and null", raw("application/json", ""), raw("application/json", "null")},
		{"length of parts", payment(func(r *RequestParts) { r.ContentType = "text/a"; r.Body = []byte("bc") }),
			payment(func(r *RequestParts) { r.ContentType = "text/ab"; r.Body = []byte("c") })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if a, b := fingerprintOf(t, tt.a), fingerprintOf(t, tt.b); a == b {
				t.Errorf("fingerprints of %+v and %+v are the same", tt.a, tt.b)
			}
		})
	}
}

// Records outlive builds: what version 1 covers can never change.
func TestRequestFingerprintVersion1IsFixed(t *testing.T) {
	const want = "v1:0974a29e3295e241313020b684c67b3a2c640fc4ea85f3a59b0aab2a9af886a6"
	if got := fingerprintOf(t, payment(nil)).String(); got != want {
		t.Errorf("RequestFingerprint = %s, want %s", got, want)
	}
	parts := []string{"currency=USD&debug=1&", "application/json", "", `{"amount":1250,"from":"alice"}`}
	f, err := NewFingerprint(1, "http POST /v1/payments", parts...)
	if err != nil || f.String() != want {
		t.Errorf("NewFingerprint of the same parts = %s, %v, want %s", f, err, want)
	}
}

func TestRequestFingerprintTakesWhatIsNoJSONTextAsItIs(t *testing.T) {
	gzipped := payment(func(r *RequestParts) { r.ContentEncoding, r.Body = "gzip", []byte("\x1f\x8b\x08") })
	text := payment(func(r *RequestParts) { r.ContentType, r.Body = "text/plain", []byte("{") })
	empty := payment(func(r *RequestParts) { r.Body = nil })
	unparsable := payment(func(r *RequestParts) { r.ContentType, r.Body = "application/json;;x=\"", []byte("{") })
	for _, r := range []RequestParts{gzipped, text, empty, unparsable} {
		fingerprintOf(t, r)
	}
}

func TestRequestFingerprintRefuses(t *testing.T) {
	if _, err := RequestFingerprint(2, payment(nil)); !errors.Is(err, ErrFingerprintVersion) {
		t.Errorf("RequestFingerprint(2) = %v, want ErrFingerprintVersion", err)
	}
	for _, body := range []string{"{", `{"a":1,"a":2}`, "\xff", `{"note":"secret`} {
		_, err := RequestFingerprint(1, payment(func(r *RequestParts) { r.Body = []byte(body) }))
		var r *Refusal
		if !errors.As(err, &r) || r.Code != CodeBodyInvalid {
			t.Errorf("RequestFingerprint with body %q = %v, want body-invalid", body, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("error %q holds some of the body", err)
		}
	}
}

func FuzzRequestFingerprint(f *testing.F) {
	f.Add("a=1&b=2", "application/json", "", []byte(paymentJSON))
	f.Add("a=%zz;&=&", "multipart/form-data; boundary=x", "gzip", []byte("\x1f\x8b"))
	f.Add("", "text/plain; charset=\"", "identity", []byte{})
	f.Fuzz(func(t *testing.T, query, contentType, encoding string, body []byte) {
		r := RequestParts{Operation: "http POST /", Query: query, ContentType: contentType, ContentEncoding: encoding, Body: body}
		a, err := RequestFingerprint(1, r)
		b, err2 := RequestFingerprint(1, r)
		if a != b || (err == nil) != (err2 == nil) || a.IsZero() != (err != nil) {
			t.Fatalf("RequestFingerprint(%+v) = %v, %v, then %v, %v", r, a, err, b, err2)
		}
	})
}

func BenchmarkRequestFingerprint(b *testing.B) {
	r := RequestParts{Operation: "http POST /v1/payments", ContentType: "application/json", Body: []byte(paymentJSON)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := RequestFingerprint(1, r); err != nil {
			b.Fatal(err)
		}
	}
}
