package database

import (
	"fmt"
	"net/url"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
)

// securePostgres adds the files to the options of a URL, under their names in libpq.
func securePostgres(name string, files tlsfiles.Files) (string, error) {
	u, err := url.Parse(name)
	if err != nil || !files.Given() {
		return name, nil //nolint:nilerr // pgx refuses it too
	}
	if _, err := files.Config(); err != nil { // pgx does not say which file is wrong
		return "", fmt.Errorf("database: %w", err)
	}
	q := u.Query()
	for option, value := range map[string]string{
		"sslmode": "verify-full", "sslrootcert": files.CA, "sslcert": files.Cert, "sslkey": files.Key,
	} {
		if value != "" && !q.Has(option) {
			q.Set(option, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// secureMySQL has the driver check the server's certificate by the files. An option tls of the
// URL other than "true" stays as it is.
func secureMySQL(cfg *mysqldriver.Config, files tlsfiles.Files) error {
	if !files.Given() || cfg.TLSConfig != "" && cfg.TLSConfig != "true" {
		return nil
	}
	secure, err := files.Config()
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	cfg.TLSConfig, cfg.TLS = "", secure // the driver checks the name of the host
	return nil
}
