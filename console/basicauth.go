package console

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
)

// These errors make the browser ask for a name and a password.
var (
	errAskForPassword = fmt.Errorf("%w: no name and password", ErrUnauthorised)
	errWrongPassword  = fmt.Errorf("%w: wrong name or password", ErrUnauthorised)
)

// BasicAuth returns an [Authorise] for HTTP basic authentication (RFC 7617). It knows the
// password of each operator by name, and compares in constant time. An operator with an empty
// password, such as that of a variable that is not set, is refused. Every operator has the given
// rights, whose Name is not used. So Operator{} lets them read.
//
// The browser sends the password with each request, so serve the console over TLS. Guesses are
// logged and not slowed down, so use long random passwords.
func BasicAuth(passwords map[string]string, rights Operator) Authorise {
	hashes := make(map[string][sha256.Size]byte, len(passwords))
	for name, password := range passwords {
		if password != "" {
			hashes[name] = sha256.Sum256([]byte(password))
		}
	}
	return func(r *http.Request) (Operator, error) {
		name, password, given := r.BasicAuth()
		if !given {
			return Operator{}, errAskForPassword
		}
		want, known := hashes[name]
		got := sha256.Sum256([]byte(password))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !known {
			return Operator{}, errWrongPassword
		}
		op := rights
		op.Name = name
		return op, nil
	}
}

// challenge is the WWW-Authenticate of a request that Authorise did not accept.
func (g *guard) challenge(err error) string {
	if g.cfg.Challenge == "" && (errors.Is(err, errAskForPassword) || errors.Is(err, errWrongPassword)) {
		return `Basic realm="console", charset="UTF-8"`
	}
	return g.cfg.Challenge
}
