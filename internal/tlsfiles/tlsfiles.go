// Package tlsfiles reads the files with which a program secures its connections to servers.
// The command line and the sample service have the same flags for them.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Help texts of the flags --tls-ca, --tls-cert and --tls-key.
const (
	HelpCA   = "`FILE` with the authorities, in PEM, that sign the certificates of ZooKeeper, Redis and the database; without it those of the system. With it a database is reached over TLS unless its URL says otherwise"
	HelpCert = "`FILE` with a client certificate, in PEM, for all servers that are reached over TLS; needs --tls-key"
	HelpKey  = "`FILE` with the key of --tls-cert, in PEM"
)

// Files names PEM files. The zero value trusts the authorities of the system, and has no client
// certificate.
type Files struct {
	CA        string // authorities that sign the servers' certificates
	Cert, Key string // client certificate, and its private key
}

// Given reports whether a file is named.
func (f Files) Given() bool { return f != Files{} }

// Config reads the files. The configuration allows TLS 1.2 and later, checks the certificates of
// servers, and names no server. Errors name the flag and the file.
func (f Files) Config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--tls-ca: %s has no certificate in PEM", f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("--tls-cert and --tls-key: one needs the other")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
