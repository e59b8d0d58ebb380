package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
	return len(c.Credentials) > 0 ||
		c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil)
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
		return nil, fmt.Errorf("zookeeper: TLS with %s: %w", address, err)
	}
	return secure{t, nc}, nil
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
