package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/tlshint"
)

func TestVersionsOfTLS(t *testing.T) {
	t.Parallel()
	if got, err := CheckTLS(nil); got != nil || err != nil {
		t.Errorf("CheckTLS(nil) = %v, %v, want neither", got, err)
	}
	for _, tt := range []struct{ least, most, want uint16 }{
		{0, 0, tls.VersionTLS12},
		{tls.VersionTLS12, tls.VersionTLS12, tls.VersionTLS12},
		{tls.VersionTLS13, tls.VersionTLS13, tls.VersionTLS13},
		{tls.VersionTLS11, 0, 0},
		{0, tls.VersionTLS11, 0},
	} {
		cfg := &tls.Config{MinVersion: tt.least, MaxVersion: tt.most}
		got, err := CheckTLS(cfg)
		if (err == nil) != (tt.want != 0) || err == nil && got.MinVersion != tt.want || err != nil && !strings.Contains(err.Error(), "1.") {
			t.Errorf("CheckTLS(%d to %d) = %v, %v, want %d as the least", tt.least, tt.most, got, err, tt.want)
		}
		if cfg.MinVersion != tt.least {
			t.Errorf("CheckTLS() changed the configuration of the caller")
		}
	}
}

func remote(alert tls.AlertError) error { return &net.OpError{Op: tlshint.RemoteAlert, Err: alert} }

func TestErrorsOfTLS(t *testing.T) {
	t.Parallel()
	certificate := &tls.Config{Certificates: []tls.Certificate{{}}}
	onDemand := &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, nil }}
	const (
		wants   = "; the server may want a client certificate, and this client has none"
		accepts = "; the server may not accept this client's certificate"
		plain   = "; the server may speak no TLS, or want a client certificate, and this client has none"
		either  = "; the server may speak no TLS, or not accept this client's certificate"
	)
	for _, tt := range []struct {
		err           error
		without, with string // a client certificate
		misconfigured bool
	}{
		{remote(42), wants, accepts, true},
		{fmt.Errorf("around: %w", remote(116)), wants, accepts, true},
		{remote(70), "", "", true}, // another version
		{&net.OpError{Op: "local error", Err: tls.AlertError(42)}, "", "", false},
		{io.EOF, plain, either, false},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, plain, either, false},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, plain, either, false},
		{errors.New("x"), "", "", false},
		{&tls.CertificateVerificationError{Err: errors.New("x")}, "", "", true},
		{tls.RecordHeaderError{Msg: "x"}, "", "", true},
		{fmt.Errorf("%w: it speaks TLS", errNoZooKeeper), "", "", true},
	} {
		for _, c := range []struct {
			cfg  *tls.Config
			want string
		}{{nil, ""}, {&tls.Config{}, tt.without}, {certificate, tt.with}, {onDemand, tt.with}} {
			got := (&Dialer{TLS: c.cfg}).explain(tt.err)
			if got.Error() != tt.err.Error()+c.want || !errors.Is(got, tt.err) {
				t.Errorf("explain(%v) = %q, want %q added", tt.err, got, c.want)
			}
			if certified := (&Dialer{TLS: c.cfg}).Certified(); certified != (c.cfg == certificate || c.cfg == onDemand) {
				t.Errorf("Certified() = %v", certified)
			}
			if Misconfigured(got) != tt.misconfigured {
				t.Errorf("Misconfigured(%v) = %v, want %v", got, !tt.misconfigured, tt.misconfigured)
			}
		}
	}
}

// ending is a connection that tells its end.
type ending struct {
	net.Conn
	closed bool
}

func (e *ending) Close() error {
	e.closed = true
	return e.Conn.Close()
}

// The certificate has to be that of the server as it is listed, or of the name that is configured. A
// connection that fails is closed.
func TestConnectByTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate()) // of example.com and 127.0.0.1
	for _, tt := range []struct {
		address, name string
		ok            bool
	}{
		{"example.com:2281", "", true},
		{"127.0.0.1:2281", "", true},
		{"other.test:2281", "", false},
		{"other.test:2281", "example.com", true},
		{"example.com:2281", "other.test", false},
		{"example.com", "", false}, // no port
	} {
		var below *ending
		d := &Dialer{TLS: &tls.Config{RootCAs: roots, ServerName: tt.name}, Dial: func(context.Context, string, string) (net.Conn, error) {
			nc, err := net.Dial("tcp", srv.Listener.Addr().String())
			below = &ending{Conn: nc}
			return below, err
		}}
		nc, err := d.Connect(t.Context(), "tcp", tt.address)
		if (err == nil) != tt.ok || below.closed == tt.ok || d.TLS.ServerName != tt.name {
			t.Errorf("Connect(%s) with server name %q = %v, closed %v, want it to succeed: %v", tt.address, tt.name, err, below.closed, tt.ok)
		}
		if err == nil {
			if _, ok := nc.(secure); !ok {
				t.Errorf("Connect(%s) = %T, want a connection of TLS", tt.address, nc)
			}
			if err := nc.Close(); err != nil || !below.closed {
				t.Errorf("Close() = %v, closed %v, want it closed", err, below.closed)
			}
			if err := nc.Close(); err == nil {
				t.Error("a second Close() = nil, want an error")
			}
		}
	}
	d := &Dialer{TLS: &tls.Config{}, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }}
	if nc, err := d.Connect(t.Context(), "tcp", "example.com:2281"); nc != nil || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Connect() = %v, %v, want %v", nc, err, syscall.ECONNREFUSED)
	}
}
