package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/idemkeeper/idemkeeper/internal/tlshint"
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
	return tlshint.Certified(d.TLS)
}

// dial calls the application's function. Its panic is an error, because it would end the process on a
// goroutine of the library.
func (d *Dialer) dial(ctx context.Context, network, address string) (nc net.Conn, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("zookeeper: Config.Dial panicked: %v", p)
		}
	}()
	return d.Dial(ctx, network, address)
}

// Connect opens a connection to a server as it is listed, and does the TLS handshake
// if TLS is configured. The library's own host provider would resolve the name first,
// and the certificate could not be verified against it.
func (d *Dialer) Connect(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := d.dial(ctx, network, address)
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

// explain adds the likely reason to the error of a server that refuses the client.
func (d *Dialer) explain(err error) error {
	if d.TLS == nil {
		return err
	}
	return tlshint.Explain(err, d.Certified())
}

// Misconfigured reports whether an error stays until a setting of the client or of the
// server is changed.
func Misconfigured(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == tlshint.RemoteAlert {
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
