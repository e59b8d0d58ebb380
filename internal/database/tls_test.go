package database_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
)

// files are those of a client that trusts an authority.
func files(t *testing.T, a *testserver.Authority) (f tlsfiles.Files) {
	t.Helper()
	f.CA, f.Cert, f.Key = a.ClientFiles("payments")
	return f
}

// A connection is secured as soon as a file is named, and a server without the right
// certificate is refused with the reason.
func TestDatabaseOverTLS(t *testing.T) {
	t.Parallel()
	ca, strangers := testserver.NewAuthority(t), testserver.NewAuthority(t)
	mine, others := files(t, ca), files(t, strangers)
	onlyCA := tlsfiles.Files{CA: mine.CA}
	pg, maria := testserver.StartSecurePostgres(t, ca).Addr(), testserver.StartSecureMariaDB(t, ca).Addr()
	named := func(addr string) string { return strings.Replace(addr, "127.0.0.1", "localhost", 1) }
	const secured = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
	const cipher = "SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'Ssl_cipher'"
	for _, tt := range []struct {
		name, url string
		files     tlsfiles.Files
		query     string // tells whether the connection is secured
		secured   bool
		refusal   string // part of the error, "" for none
	}{
		{"PostgreSQL", "postgres://idemkeeper@" + pg + "/postgres", mine, secured, true, ""},
		{"PostgreSQL by its authority", "postgres://idemkeeper@" + pg + "/postgres", onlyCA, secured, true, ""},
		{"PostgreSQL by its URL", "postgres://idemkeeper@" + pg + "/postgres?sslmode=verify-full&sslrootcert=" + mine.CA, tlsfiles.Files{}, secured, true, ""},
		{"PostgreSQL in the clear by its URL", "postgres://idemkeeper@" + pg + "/postgres?sslmode=disable", mine, secured, false, ""},
		{"PostgreSQL of a stranger", "postgres://idemkeeper@" + pg + "/postgres", others, secured, true, "unknown authority"},
		{"PostgreSQL under another name", "postgres://idemkeeper@" + named(pg) + "/postgres", mine, secured, true, "localhost"},
		{"MariaDB", "mysql://idemkeeper@" + maria + "/mysql", mine, cipher, true, ""},
		{"MariaDB by its authority", "mysql://idemkeeper@" + maria + "/mysql?tls=true", onlyCA, cipher, true, ""},
		{"MariaDB by its URL", "mysql://idemkeeper@" + maria + "/mysql?tls=skip-verify", tlsfiles.Files{}, cipher, true, ""},
		{"MariaDB in the clear by its URL", "mysql://idemkeeper@" + maria + "/mysql?tls=false", mine, cipher, false, ""},
		{"MariaDB of a stranger", "mysql://idemkeeper@" + maria + "/mysql", others, cipher, true, "unknown authority"},
		{"MariaDB under another name", "mysql://idemkeeper@" + named(maria) + "/mysql", mine, cipher, true, "localhost"},
		{"MariaDB by the system's authorities", "mysql://idemkeeper@" + maria + "/mysql?tls=true", tlsfiles.Files{}, cipher, true, "unknown authority"},
	} {
		db, err := database.Open(tt.url, database.Options{TLS: tt.files})
		if err != nil {
			t.Errorf("%s: Open() = %v", tt.name, err)
			continue
		}
		defer db.Close()
		var is bool
		err = db.Write.QueryRowContext(t.Context(), tt.query).Scan(&is)
		if tt.refusal == "" && (err != nil || is != tt.secured) {
			t.Errorf("%s: secured %v, %v, want %v", tt.name, is, err, tt.secured)
		}
		if tt.refusal != "" && (err == nil || !strings.Contains(err.Error(), tt.refusal)) {
			t.Errorf("%s: %v, want an error that says %q", tt.name, err, tt.refusal)
		}
	}
}

// A server may reset the connection right after the handshake because of the client's certificate. The
// error says the likely reason.
func TestDatabaseThatResetsTheConnectionOverTLS(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	mine := files(t, ca)
	for scheme, before := range map[string]func(net.Conn){
		"postgres": func(c net.Conn) { // the answer to its SSLRequest
			_, _ = io.CopyN(io.Discard, c, 8)
			_, _ = c.Write([]byte("S"))
		},
		"mysql": func(c net.Conn) { // a greeting with CLIENT_SSL and what else the driver needs, and its SSLRequest
			greeting := "\x0a8.0.0\x00" + "\x01\x00\x00\x00" + "12345678\x00" + "\x00\x8a" + "\x21" + "\x02\x00" + "\x08\x00" +
				"\x15" + strings.Repeat("\x00", 10) + "123456789012\x00" + "mysql_native_password\x00"
			_, _ = c.Write(append([]byte{byte(len(greeting)), 0, 0, 0}, greeting...))
			_, _ = io.CopyN(io.Discard, c, 36)
		},
	} {
		addr := testserver.ResetAfterTLS(t, ca, before)
		for says, files := range map[string]tlsfiles.Files{
			"want a client certificate":            {CA: mine.CA},
			"not accept this client's certificate": mine,
		} {
			db, err := database.Open(scheme+"://idemkeeper@"+addr+"/postgres", database.Options{TLS: files})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Write.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: PingContext() = %v, want an error that says %q", scheme, err, says)
			}
		}
	}
}

// A server without TLS is not used in the clear.
func TestDatabaseWithoutTLSIsRefused(t *testing.T) {
	t.Parallel()
	onlyCA := tlsfiles.Files{CA: files(t, testserver.NewAuthority(t)).CA}
	for _, url := range []string{strings.TrimSuffix(testserver.SharedPostgres(t), "?sslmode=disable"), testserver.SharedMariaDB(t) + "mysql"} {
		db, err := database.Open(url, database.Options{TLS: onlyCA})
		if err != nil {
			t.Fatalf("Open(%s) = %v", url, err)
		}
		defer db.Close()
		if err := db.Write.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s: %v, want a refusal because it speaks no TLS", url, err)
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	mine := files(t, ca)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		files tlsfiles.Files
		want  string
	}{
		{tlsfiles.Files{CA: "missing.pem"}, "--tls-ca: open missing.pem"},
		{tlsfiles.Files{CA: empty}, "no certificate in PEM"},
		{tlsfiles.Files{Cert: mine.Cert}, "one needs the other"},
		{tlsfiles.Files{Key: mine.Key}, "one needs the other"},
		{tlsfiles.Files{Cert: mine.Cert, Key: empty}, "--tls-cert and --tls-key: "},
		{tlsfiles.Files{Cert: mine.Cert, Key: files(t, ca).Key}, "does not match"},
	} {
		for _, url := range []string{"postgres://h/x", "mysql://h/x"} {
			db, err := database.Open(url, database.Options{TLS: tt.files})
			if err == nil {
				_ = db.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open(%s) with %+v = %v, want %q", url, tt.files, err, tt.want)
			}
		}
	}
}
