package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A store works over TLS, and a server or a client without the right certificate is refused
// with the reason.
func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	r := testserver.StartSecureRedis(t, ca)
	strangers := testserver.NewAuthority(t).Client("payments")
	if _, err := x509.SystemCertPool(); err != nil { // read once, outside of the time for a handshake
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, url string
		tls       *tls.Config
		refusal   string // part of the error, "" for none
	}{
		{"with both certificates", r.SecureURL(), ca.Client("payments"), ""},
		{"in the clear by its URL", r.URL(), ca.Client("payments"), ""},
		{"by the system's authorities", r.SecureURL(), nil, "unknown authority"},
		{"of a stranger", r.SecureURL(), strangers, "unknown authority"},
		{"under another name", strings.Replace(r.SecureURL(), "127.0.0.1", "localhost", 1), ca.Client("payments"), "localhost"},
		{"under a name that was given", r.SecureURL(), func() *tls.Config { c := ca.Client("payments"); c.ServerName = "redis.example"; return c }(), "redis.example"},
		{"without a client certificate", r.SecureURL(), ca.Client(""), "want a client certificate, and this client has none"},
		{"in the clear at the port for TLS", "redis://" + r.SecureAddr(), nil, ""},
	} {
		client, err := Connect(tt.url, WithTLS(tt.tls))
		if err != nil {
			t.Fatalf("%s: Connect() = %v", tt.name, err)
		}
		t.Cleanup(func() { _ = client.Close() })
		store, err := New(t.Context(), client, WithPrefix(testserver.KeyPrefix(t)))
		if err == nil {
			id, req := newAttempt(driver.ClientKey)
			_, err = store.Begin(t.Context(), id, req)
		}
		clearToTLS := strings.HasSuffix(tt.url, r.SecureAddr())
		switch {
		case clearToTLS && err == nil:
			t.Errorf("%s: it is served", tt.name)
		case tt.refusal == "" && !clearToTLS && err != nil:
			t.Errorf("%s: %v, want it served", tt.name, err)
		case tt.refusal != "" && (err == nil || !strings.Contains(err.Error(), tt.refusal) || !errors.Is(err, driver.ErrUnavailable)):
			t.Errorf("%s: %v, want one that says %q", tt.name, err, tt.refusal)
		}
	}
}

// A server may reset the connection right after the handshake of TLS 1.3, and the client's first
// write may meet the reset before the alert is read. The error says the likely reason all the same.
func TestRefusalOverTLSThatArrivesAsAReset(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	url := "rediss://" + testserver.ResetAfterTLS(t, ca, nil)
	for name, tt := range map[string]struct{ subject, says string }{
		"without a client certificate": {"", "want a client certificate, and this client has none"},
		"with one":                     {"payments", "not accept this client's certificate"},
	} {
		client, err := Connect(url, WithTLS(ca.Client(tt.subject)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if _, err := New(t.Context(), client); err == nil || !strings.Contains(err.Error(), tt.says) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: New() = %v, want one that says %q", name, err, tt.says)
		}
	}
}

// The sentinels and each server of a cluster are checked under their own names.
func TestConnectOptionsForTLS(t *testing.T) {
	t.Parallel()
	given := &tls.Config{MinVersion: tls.VersionTLS13}
	for addr, want := range map[string]string{
		"rediss://a:1":                 "a",
		"rediss://a:1,rediss://b:2":    "",
		"rediss+sentinel://a:1,b/m":    "",
		"rediss+sentinel://u:p@a:1/m":  "",
		"redis+sentinel://a:1,b:2/m/4": "none",
	} {
		o, err := parseAddr(addr)
		if err != nil {
			t.Fatalf("parseAddr(%q) = %v", addr, err)
		}
		WithTLS(given)(o)
		got := "none"
		if o.TLSConfig != nil {
			got = o.TLSConfig.ServerName
			if o.TLSConfig == given || o.TLSConfig.MinVersion != given.MinVersion {
				t.Errorf("%s: the given configuration is not copied", addr)
			}
		}
		if got != want {
			t.Errorf("%s: checks the name %q, want %q", addr, got, want)
		}
	}
	if _, err := Connect("redisss+sentinel://a/m"); err == nil {
		t.Error("an unknown scheme is taken")
	}
}
