package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// checkTLS refuses what would be less safe than it looks.
func (c *Config) checkTLS() error {
	if c.TLS == nil {
		return nil
	}
	c.TLS = c.TLS.Clone()
	if v := c.TLS.MinVersion; v != 0 && v < tls.VersionTLS12 {
		return fmt.Errorf("zookeeper: config allows %s, 1.2 is the least", tls.VersionName(v))
	}
	if v := c.TLS.MaxVersion; v != 0 && v < tls.VersionTLS12 {
		return errors.New("zookeeper: config allows no version of TLS from 1.2 on")
	}
	c.TLS.MinVersion = max(c.TLS.MinVersion, tls.VersionTLS12)
	return nil
}

// authenticates says that the servers are to know who this client is.
func (c *Config) authenticates() bool {
	return len(c.Credentials) > 0 || c.certified()
}

// connect opens a connection to one of Servers, as listed, and shakes hands over
// it where that is asked for. go-zookeeper's own host provider would resolve
// names first, and there would be nothing to verify a certificate against.
func (c *Config) connect(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := c.Dial(ctx, network, address)
	if err != nil || c.TLS == nil {
		return nc, err
	}
	cfg := c.TLS
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
		return nil, fmt.Errorf("zookeeper: TLS with %s: %w", address, c.explain(err))
	}
	return secure{t, nc}, nil
}

// explain adds to the error of a connection that the server has ended what that
// is likely to mean. A server that wants another certificate says so by one of
// several alerts, which depends on its version of Java, or by closing: in the
// handshake, or right after it (TLS 1.3).
func (c *Config) explain(err error) error {
	alert := aboutCertificate(err)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case c.TLS == nil || !alert && !ended:
		return err
	case alert && c.certified():
		return fmt.Errorf("%w; the server may not accept this client's certificate", err)
	case alert:
		return fmt.Errorf("%w; the server may want a client certificate, and Config.TLS has none", err)
	case c.certified():
		return fmt.Errorf("%w; the server may speak no TLS, or not accept this client's certificate", err)
	}
	return fmt.Errorf("%w; the server may speak no TLS, or want a client certificate, and Config.TLS has none", err)
}

// certified says that a client certificate is there to be presented.
func (c *Config) certified() bool {
	return c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil)
}

// aboutCertificate tells an alert of the server's that can be about the client's
// certificate, or want of one (RFC 8446, section 6.2).
func aboutCertificate(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != remoteAlert {
		return false
	}
	for _, code := range []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 116} {
		if op.Err.Error() == code.Error() { // the type of it is crypto/tls's own
			return true
		}
	}
	return false
}

// remoteAlert is how crypto/tls marks an alert that was received.
const remoteAlert = "remote error"

// wrongTLS tells errors that are there until somebody changes a setting, of the
// client or of the server.
func wrongTLS(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == remoteAlert {
		return true
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return unverified || plain
}

// secure is a TLS connection that is closed without a word: saying goodbye
// waits, for seconds, for a peer that reads no more. Requests and answers carry
// their lengths, so that neither side takes a cut for an end.
type secure struct {
	*tls.Conn
	below net.Conn
}

// Close implements net.Conn.
func (c secure) Close() error { return c.below.Close() }
