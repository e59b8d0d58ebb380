package testserver

import (
	"errors"
	"os"
	"strconv"
	"testing"
)

// SecureRedis is a Redis server with a second port, for TLS. There it wants a certificate of
// the authority's from each client.
type SecureRedis struct {
	*Redis
	secureAddr string
}

// StartSecureRedis is StartRedis for a server with TLS. Its certificate is for 127.0.0.1 and
// for no name.
func StartSecureRedis(tb testing.TB, a *Authority, opts ...RedisOption) *SecureRedis {
	tb.Helper()
	needsServer(tb)
	dir, s := tb.TempDir(), &SecureRedis{}
	ca, cert, key, err := a.serverFiles(dir, func(string) error { return nil })
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	held, err := retryOnBind(2, func(nums []int) (err error) {
		s.secureAddr = loopback(nums[1])
		args := []string{"--tls-port", strconv.Itoa(nums[1]), "--tls-ca-cert-file", ca, "--tls-cert-file", cert, "--tls-key-file", key}
		if s.Redis, err = newRedis(dir, nums[0], newRedisConfig(opts), args...); err != nil {
			return err
		}
		return s.start()
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	s.own(tb)
	return s
}

// SecureAddr returns host:port of the port for TLS. Addr is that of the other.
func (s *SecureRedis) SecureAddr() string { return s.secureAddr }

// SecureURL returns rediss://host:port/0.
func (s *SecureRedis) SecureURL() string { return "rediss://" + s.secureAddr + "/0" }

// StartSecurePostgres is StartPostgres for a server that also speaks TLS, on the same port. Its
// certificate is for 127.0.0.1 and for no name. It does not sync to disk.
func StartSecurePostgres(tb testing.TB, a *Authority) *Postgres {
	tb.Helper()
	needsServer(tb)
	ca, cert, key := a.filesOf(tb, "postgres")
	return ownPostgres(tb, nil, initPostgres, "-c", "fsync=off", "-c", "ssl=on", "-c", "ssl_ca_file="+ca, "-c", "ssl_cert_file="+cert, "-c", "ssl_key_file="+key)
}

// StartSecureMariaDB is StartMariaDB for a server that also speaks TLS, on the same port. Its
// certificate is for 127.0.0.1 and for no name. It does not sync to disk.
func StartSecureMariaDB(tb testing.TB, a *Authority) *MariaDB {
	tb.Helper()
	needsServer(tb)
	ca, cert, key := a.filesOf(tb, "mysql")
	return StartMariaDB(tb, "--innodb-flush-method=nosync", "--ssl-ca="+ca, "--ssl-cert="+cert, "--ssl-key="+key)
}

// filesOf writes the files of a server that runs as a user of its own.
func (a *Authority) filesOf(tb testing.TB, user string) (ca, cert, key string) {
	tb.Helper()
	_, owner, err := serverUser(user)
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "idemkeeper-tls-") // the user cannot enter a test's own folder
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	ca, cert, key, err = a.serverFiles(dir, owner)
	if err := errors.Join(err, owner(dir)); err != nil {
		tb.Fatal(err)
	}
	return ca, cert, key
}
