// Package hostport checks the addresses of servers as people write them, so that a mistyped one is
// refused before any connection is tried.
package hostport

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Check refuses what is no name or address of a host, and no port. An IPv6 address has no brackets.
// Errors do not show the host, which may be a part of a password.
func Check(host, port string) error {
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return errors.New("the host has ':' and is no IPv6 address")
		}
	} else if host == "" || strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
	}) {
		return errors.New("the host is empty, or has other characters than letters, digits, '-', '.' and '_'")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("the port is not a number from 1 to 65535")
	}
	return nil
}

// OfURL returns host and port of a URL. An IPv6 address has to stand in brackets.
func OfURL(u *url.URL, defaultPort string) (host, port string, err error) {
	host, port = u.Hostname(), u.Port()
	if port == "" && !strings.HasSuffix(u.Host, ":") {
		port = defaultPort
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(u.Host, "[") {
		return "", "", errors.New("an IPv6 address has to stand in brackets, and there may be one server only")
	}
	return host, port, Check(host, port)
}
