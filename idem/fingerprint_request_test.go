package idem

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func fingerprintOf(t *testing.T, r RequestParts) driver.Fingerprint {
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

// multipartOf is a multipart form of two fields.
func multipartOf(boundary, from, amount string) RequestParts {
	return payment(func(r *RequestParts) {
		r.ContentType = "multipart/form-data; boundary=" + boundary
		r.Body = []byte("--" + boundary + "\r\nContent-Disposition: form-data; name=\"from\"\r\n\r\n" + from +
			"\r\n--" + boundary + "\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n" + amount +
			"\r\n--" + boundary + "--\r\n")
	})
}

func TestRequestFingerprintSame(t *testing.T) {
	base := payment(nil)
	gzipped := payment(func(r *RequestParts) { r.ContentEncoding, r.Body = "gzip", []byte("\x1f\x8b\x08") })
	notJSON := payment(func(r *RequestParts) { r.ContentType, r.Body = "text/plain", []byte("{") })
	empty := payment(func(r *RequestParts) { r.Body = nil })
	unparsable := payment(func(r *RequestParts) { r.ContentType, r.Body = "application/json;;x=\"", []byte("{") })
	form := func(body string) RequestParts {
		return payment(func(r *RequestParts) {
			r.ContentType, r.Body = "application/x-www-form-urlencoded", []byte(body)
		})
	}
	tests := []struct {
		name string
		a, b RequestParts
	}{
		{"nothing changed", base, base},
		{"a body that is no text, gzipped", gzipped, gzipped},
		{"a text that is no JSON", notJSON, notJSON},
		{"no body", empty, empty},
		{"a media type that cannot be parsed", unparsable, unparsable},
		{"order of names in a form", form("to=bob&amount=1250&from=alice"), form("amount=1250&from=alice&to=bob")},
		{"escapes in a form", form("note=a+b&to=bob"), form("n%6fte=a%20b&to=b%6Fb")},
		{"empty pairs in a form", form("to=bob&amount="), form("&to=bob&&amount&")},
		{"names between the values of one name", form("a=1&b=0&a=2"), form("b=0&a=1&a=2")},
		{"the boundary of a multipart form", multipartOf("one", "alice", "1250"), multipartOf("two", "alice", "1250")},
		{"the text around a multipart form", multipartOf("one", "alice", "1250"), payment(func(r *RequestParts) {
			*r = multipartOf("one", "alice", "1250")
			r.Body = []byte("before\r\n" + string(r.Body) + "behind")
		})},
		{"headers that do not count", base, payment(func(r *RequestParts) { r.Header = map[string][]string{} })},
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
	form := func(body string) RequestParts {
		return payment(func(r *RequestParts) {
			r.ContentType, r.Body = "application/x-www-form-urlencoded", []byte(body)
		})
	}
	headed := func(name string, lines ...string) RequestParts {
		return payment(func(r *RequestParts) { r.Header = map[string][]string{name: lines} })
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
		{"the order of a form's values", form("a=1&a=2"), form("a=2&a=1")},
		{"the order of a form's list of objects", form("a[][x]=1&a[][y]=2&a[][x]=3"), form("a[][x]=1&a[][x]=3&a[][y]=2")},
		{"a form's value", form("amount=1250"), form("amount=1251")},
		{"a form's escaped ampersand", form("a=1%26b=2"), form("a=1&b=2")},
		{"the order of a malformed form", form("a=1&b=%zz"), form("b=%zz&a=1")},
		{"the order of a form with a semicolon", form("a=1&b=2;c=3"), form("b=2;c=3&a=1")},
		{"a form with too many pairs to be put in order", form("a=1" + strings.Repeat("&b", maxPairs)), form(strings.Repeat("b&", maxPairs) + "a=1")},
		{"a form that is content-encoded", payment(func(r *RequestParts) { *r = form("a=1&b=2"); r.ContentEncoding = "br" }),
			payment(func(r *RequestParts) { *r = form("b=2&a=1"); r.ContentEncoding = "br" })},
		{"the content of a part", multipartOf("one", "alice", "1250"), multipartOf("one", "alice", "1251")},
		{"content moved to the next part", multipartOf("one", "alice1", "250"), multipartOf("one", "alice", "1250")},
		{"a malformed name", form("%zz=1"), form("%yy=1")},
		{"the text around the parts of another multipart type", raw("multipart/mixed; boundary=one", "--one--"), raw("multipart/mixed; boundary=one", "text\r\n--one--")},
		{"a multipart form that breaks off", payment(func(r *RequestParts) {
			*r = multipartOf("one", "alice", "1250")
			r.Body = r.Body[:len(r.Body)-4]
		}), multipartOf("one", "alice", "1250")},
		{"a malformed multipart form with another boundary", raw("multipart/form-data; boundary=one", "--x"), raw("multipart/form-data; boundary=two", "--x")},
		{"a header that counts", headed("X-Currency", "USD"), headed("X-Currency", "EUR")},
		{"a header that counts and was not sent", headed("X-Currency", ""), headed("X-Currency")},
		{"two lines of a header", headed("X-Currency", "USD", "EUR"), headed("X-Currency", "USD, EUR")},
		{"the name of a header", headed("X-A", "1"), headed("X-B", "1")},
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
	const want = "v1:701cfaddc161b8ca89166efcb9a3a355677ceba0b42677c452378dbd44d26550"
	if got := fingerprintOf(t, payment(nil)).String(); got != want {
		t.Errorf("RequestFingerprint = %s, want %s", got, want)
	}
	parts := []string{"currency=USD&debug=1&", "application/json", "", "", `{"amount":1250,"from":"alice"}`}
	f, err := NewFingerprint(1, "http POST /v1/payments", parts...)
	if err != nil || f.String() != want {
		t.Errorf("NewFingerprint of the same parts = %s, %v, want %s", f, err, want)
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
	f.Add("a=%zz", "application/x-www-form-urlencoded", "", []byte("a=1&b=%zz&a=%20;&"))
	f.Add("", "multipart/form-data; boundary=x", "", multipartOf("x", "alice", "1250").Body)
	for _, body := range []string{
		"", " ", "\n", "null", "0", "-0", "1e999", "01", `""`, `"`, `"\ud800"`, "\"\xff\"", "\xef\xbb\xbf{}", "{", "}", "[]", "[1,]", "{}{}", "{} ",
		`{"a":1,"a":2}`, `{"A":1,"a":2}`, `{"b":[{"a":1.50}],"a":"\u0061\/"}`, `{"a":nul}`, "\x00", "a=1&b=2", "\x1f\x8b\x08",
		strings.Repeat("[", maxJSONDepth+1), strings.Repeat("[", maxJSONDepth) + strings.Repeat("]", maxJSONDepth),
	} {
		for _, encoding := range []string{"", "gzip", "identity"} {
			f.Add("", "application/json", encoding, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, query, contentType, encoding string, body []byte) {
		before := bytes.Clone(body)
		r := RequestParts{Operation: "http POST /", Query: query, ContentType: contentType, ContentEncoding: encoding, Body: body}
		read, err := url.ParseQuery(query)
		again, err2 := url.ParseQuery(canonicalPairs(query))
		if (err == nil) != (err2 == nil) || !reflect.DeepEqual(read, again) {
			t.Fatalf("query %q is %v, %v, in canonical form %v, %v", query, read, err, again, err2)
		}
		a, err := RequestFingerprint(1, r)
		b, err2 := RequestFingerprint(1, r)
		if a != b || (err == nil) != (err2 == nil) || a.IsZero() != (err != nil) {
			t.Fatalf("RequestFingerprint(%+v) = %v, %v, then %v, %v", r, a, err, b, err2)
		}
		// A media type in the usual spelling takes a shorter path.
		for _, spelling := range []string{"Application/JSON", " application/json ", "application/json;"} {
			if r.ContentType = spelling; contentType == "application/json" {
				if b, err2 := RequestFingerprint(1, r); a != b || fmt.Sprint(err) != fmt.Sprint(err2) {
					t.Fatalf("RequestFingerprint(%+v) = %v, %v, and in the usual spelling %v, %v", r, b, err2, a, err)
				}
			}
		}
		if !bytes.Equal(body, before) {
			t.Fatalf("RequestFingerprint changed the body %q to %q", before, body)
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
