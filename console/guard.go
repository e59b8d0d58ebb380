package console

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// guard lets requests of operators through, and of nobody else.
type guard struct {
	cfg       *Config
	authorise Authorise
	origin    *http.CrossOriginProtection
	now       func() time.Time
}

func newGuard(cfg *Config, authorise Authorise) *guard {
	return &guard{cfg: cfg, authorise: authorise, origin: http.NewCrossOriginProtection(), now: time.Now}
}

// policy allows the console's own files and nothing else. form-action and frame-ancestors do not
// fall back to default-src (CSP Level 3, section 6).
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// maxForm bounds the body of a form in bytes.
const maxForm = 2 << 20

type operatorKey struct{}

// operatorOf is the operator of a request that the guard has let through.
func operatorOf(r *http.Request) Operator {
	op, _ := r.Context().Value(operatorKey{}).(Operator)
	return op
}

// refusal answers a request with a status and a text for a person.
type refusal func(w http.ResponseWriter, r *http.Request, status int, text string)

// serve sets the headers of every answer, and calls next for an operator's request. A POST also
// has to come from a form of the console.
func (g *guard) serve(w http.ResponseWriter, r *http.Request, next http.HandlerFunc, refuse refusal) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // a form's origin has to be told to its own console
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	op, err := g.authorise(r)
	switch {
	case errors.Is(err, ErrUnauthorised):
		if errors.Is(err, errWrongPassword) { // the name is not logged, because it may be a password in the wrong field
			g.cfg.Logger.WarnContext(r.Context(), "console: wrong name or password", "from", r.RemoteAddr)
		}
		if challenge := g.challenge(err); challenge != "" {
			h.Set("WWW-Authenticate", challenge)
		}
		refuse(w, r, http.StatusUnauthorized, "Sign in as an operator.")
		return
	case err != nil:
		g.cfg.Logger.WarnContext(r.Context(), "console: refused", "err", err)
		refuse(w, r, http.StatusForbidden, "You may not use this console.")
		return
	}
	if err := operate.CheckDecision(driver.Decision{By: op.Name}, "Operator.Name", ""); err != nil {
		g.cfg.Logger.ErrorContext(r.Context(), "console: the authoriser names no person", "err", err)
		refuse(w, r, http.StatusForbidden, "You may not use this console.")
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), operatorKey{}, op))
	if r.Method == http.MethodPost {
		if err := g.origin.Check(r); err != nil {
			g.cfg.Logger.WarnContext(r.Context(), "console: a form from another site was refused", "operator", op.Name, "err", err)
			refuse(w, r, http.StatusForbidden, "This form does not come from the console. Nothing was done.")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			refuse(w, r, http.StatusBadRequest, "The form cannot be read. Nothing was done.")
			return
		}
		if r.URL.Path != signOutPath && !g.good(r.PostForm.Get("token"), op) {
			refuse(w, r, http.StatusForbidden, "The form is too old, or is not yours. Nothing was done. Open the page again.")
			return
		}
	}
	next(w, r)
}

// tokenLife is how long a form can be sent.
const tokenLife = 12 * time.Hour

// token proves that a form was made for the operator, a short time ago.
func (g *guard) token(op Operator) string {
	var when [8]byte
	binary.BigEndian.PutUint64(when[:], uint64(g.now().Unix()))
	return base64.RawURLEncoding.EncodeToString(append(when[:], g.mac(when[:], op)...))
}

func (g *guard) mac(when []byte, op Operator) []byte {
	m := hmac.New(sha256.New, g.cfg.TokenKey)
	m.Write([]byte("idemkeeper console form 1\x00"))
	m.Write(when)
	m.Write([]byte(op.Name))
	return m.Sum(nil)
}

func (g *guard) good(token string, op Operator) bool {
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(token))
	if err != nil || len(data) != 8+sha256.Size {
		return false
	}
	age := g.now().Sub(time.Unix(int64(binary.BigEndian.Uint64(data)), 0)) // the MAC covers it
	return hmac.Equal(data[8:], g.mac(data[:8], op)) && age >= -time.Minute && age < tokenLife
}
