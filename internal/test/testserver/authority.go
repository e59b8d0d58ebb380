package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for a test.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns a certificate authority of its own, unknown to any other program.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	template := a.template("testserver authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a.key = a.newKey()
	a.cert = a.sign(template, template, a.key)
	return a
}

// Pool returns what a client or server trusts who trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Client returns a configuration that trusts the authority and presents a
// certificate for a subject with this common name, if the name is not empty.
func (a *Authority) Client(name string) *tls.Config {
	a.tb.Helper()
	cfg := &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}
	if name != "" {
		template := a.template(name)
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		cfg.Certificates = []tls.Certificate{a.issue(template)}
	}
	return cfg
}

// Server returns a configuration of a server on 127.0.0.1.
func (a *Authority) Server() *tls.Config {
	a.tb.Helper()
	return &tls.Config{Certificates: []tls.Certificate{a.server()}, MinVersion: tls.VersionTLS12}
}

// ClientFiles writes what a program needs: the certificate of the authority, and a client
// certificate with its key. It returns the names of the files.
func (a *Authority) ClientFiles(name string) (ca, cert, key string) {
	a.tb.Helper()
	dir := a.tb.TempDir()
	ca, cert, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	a.store(ca, tls.Certificate{Certificate: [][]byte{a.cert.Raw}})
	pair := a.Client(name).Certificates[0]
	a.store(cert, tls.Certificate{Certificate: pair.Certificate})
	a.store(key, tls.Certificate{PrivateKey: pair.PrivateKey})
	return ca, cert, key
}

// server returns a certificate for a server on 127.0.0.1, which has no name.
func (a *Authority) server() tls.Certificate {
	a.tb.Helper()
	template := a.template("testserver")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.issue(template)
}

func (a *Authority) template(name string) *x509.Certificate {
	a.tb.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.tb.Fatalf("testserver: %v", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatalf("testserver: %v", err)
	}
	return key
}

func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.tb.Fatalf("testserver: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.tb.Fatalf("testserver: %v", err)
	}
	return cert
}

func (a *Authority) issue(template *x509.Certificate) tls.Certificate {
	a.tb.Helper()
	key := a.newKey()
	cert := a.sign(template, a.cert, key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// serverFiles writes the authority's certificate, and that of a server with its key, into a
// folder. owner gives the files to the user of the server, who alone can read them.
func (a *Authority) serverFiles(dir string, owner func(file string) error) (ca, cert, key string, err error) {
	a.tb.Helper()
	ca, cert, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	pair := a.server()
	a.store(ca, tls.Certificate{Certificate: [][]byte{a.cert.Raw}})
	a.store(cert, tls.Certificate{Certificate: pair.Certificate})
	a.store(key, tls.Certificate{PrivateKey: pair.PrivateKey})
	return ca, cert, key, errors.Join(owner(ca), owner(cert), owner(key))
}

// store writes PEM: certificates, and the private key of the first if it has one.
func (a *Authority) store(file string, cert tls.Certificate) {
	a.tb.Helper()
	var text []byte
	if cert.PrivateKey != nil {
		der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			a.tb.Fatalf("testserver: %v", err)
		}
		text = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	for _, der := range cert.Certificate {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		a.tb.Fatalf("testserver: %v", err)
	}
}
