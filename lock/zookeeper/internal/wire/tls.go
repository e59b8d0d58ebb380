package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Dialer opens connections to ZooKeeper servers.
type Dialer struct {
	// Dial opens a connection to a server, as it is listed.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// TLS secures the connection. Nil means no TLS.
	TLS *tls.Config
}

// CheckTLS returns a copy of a configuration, without versions before TLS 1.2.
func CheckTLS(c *tls.Config) (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	if v := c.MinVersion; v != 0 && v < tls.VersionTLS12 {
		return nil, fmt.Errorf("zookeeper: config allows %s, 1.2 is the least", tls.VersionName(v))
	}
	if v := c.MaxVersion; v != 0 && v < tls.VersionTLS12 {
		return nil, errors.New("zookeeper: config allows no version of TLS from 1.2 on")
	}
	c = c.Clone()
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
	return c, nil
}

// Certified reports whether the dialer presents a client certificate.
func (d *Dialer) Certified() bool {
	return d.TLS != nil && (len(d.TLS.Certificates) > 0 || d.TLS.GetClientCertificate != nil)
}

// Connect opens a connection to a server as it is listed, and does the TLS handshake
// if TLS is configured. The library's own host provider would resolve the name first,
// and the certificate could not be verified against it.
func (d *Dialer) Connect(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := d.Dial(ctx, network, address)
	if err != nil || d.TLS == nil {
		return nc, err
	}
	cfg := d.TLS
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			_ = nc.Close()
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	t := tls.Client(nc, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("zookeeper: TLS with %s: %w", address, d.explain(err))
	}
	return secure{t, nc}, nil
}

// explain adds the likely reason to the error, if the server has ended the connection. A
// server with no trust in the certificate sends one of several alerts, by its version of
// Java, or closes the connection. It does so in the handshake, or right after it (TLS
// 1.3).
func (d *Dialer) explain(err error) error {
	alert := aboutCertificate(err)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case d.TLS == nil || !alert && !ended:
		return err
	case alert && d.Certified():
		return fmt.Errorf("%w; the server may not accept this client's certificate", err)
	case alert:
		return fmt.Errorf("%w; the server may want a client certificate, and Config.TLS has none", err)
	case d.Certified():
		return fmt.Errorf("%w; the server may speak no TLS, or not accept this client's certificate", err)
	}
	return fmt.Errorf("%w; the server may speak no TLS, or want a client certificate, and Config.TLS has none", err)
}

// aboutCertificate recognises an alert of the server about a wrong or missing client
// certificate (RFC 8446, section 6.2).
func aboutCertificate(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != remoteAlert {
		return false
	}
	for _, code := range []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 116} {
		if op.Err.Error() == code.Error() { // its type is private to crypto/tls
			return true
		}
	}
	return false
}

// remoteAlert is how crypto/tls marks an alert that was received.
const remoteAlert = "remote error"

// Misconfigured reports whether an error stays until a setting of the client or of the
// server is changed.
func Misconfigured(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == remoteAlert {
		return true
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return unverified || plain || errors.Is(err, errNoZooKeeper)
}

var errNoZooKeeper = errors.New("zookeeper: this is no ZooKeeper server")

// secure is a TLS connection that closes without a close alert. The alert can wait for
// seconds for a peer that reads no more. Requests and answers carry their lengths, so
// neither side mistakes a cut for an end.
type secure struct {
	*tls.Conn
	below net.Conn
}

// Close implements net.Conn.
func (c secure) Close() error { return c.below.Close() }
