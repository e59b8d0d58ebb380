// Package tlshint adds the likely reason to the error of a server that refuses a client over TLS.
package tlshint

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Explain adds the likely reason to an error of the first exchange over a new TLS connection.
// certified says that the client presents a certificate. The error is returned as it is if the
// server neither sent an alert about certificates nor ended the connection.
//
// A server that does not trust the client sends one of several alerts, or only closes the
// connection. With TLS 1.3 it does so after the handshake. The client may then see the alert, the
// end of the stream, or a reset of the connection by its own write, whichever comes first.
func Explain(err error, certified bool) error {
	alert := aboutCertificate(err)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case !alert && !ended:
		return err
	case alert && certified:
		return fmt.Errorf("%w; the server may not accept this client's certificate", err)
	case alert:
		return fmt.Errorf("%w; the server may want a client certificate, and this client has none", err)
	case certified:
		return fmt.Errorf("%w; the server may speak no TLS, or not accept this client's certificate", err)
	}
	return fmt.Errorf("%w; the server may speak no TLS, or want a client certificate, and this client has none", err)
}

// Certified reports whether a configuration presents a client certificate.
func Certified(c *tls.Config) bool {
	return c != nil && (len(c.Certificates) > 0 || c.GetClientCertificate != nil)
}

// aboutCertificate recognises an alert of the server about a wrong or missing client
// certificate (RFC 8446, section 6.2).
func aboutCertificate(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != RemoteAlert {
		return false
	}
	for _, code := range []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 116} {
		if op.Err.Error() == code.Error() { // its type is private to crypto/tls
			return true
		}
	}
	return false
}

// RemoteAlert is the Op of the [net.OpError] with which crypto/tls marks an alert of the server.
const RemoteAlert = "remote error"
