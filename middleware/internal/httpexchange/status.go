package httpexchange

import (
	"net/http"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// KeyStatus is the answer of a status handler.
type KeyStatus struct {
	State       string    `json:"state"`
	OperationID string    `json:"operation_id,omitempty"`
	Kind        string    `json:"kind,omitempty"`
	Attempt     uint32    `json:"attempt,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	Resolver    *bool     `json:"resolver,omitempty"` // of an attempt that is open
}

// IssuedToken is the answer of a token handler.
type IssuedToken struct {
	Token     idem.Key  `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Status answers GET, and HEAD, with where the caller's key stands.
func (x *Exchange) Status(c Call) {
	if !allowed(c, http.MethodGet, http.MethodHead) {
		return
	}
	s, err := x.status(c)
	if err != nil {
		x.refuse(&c, refusalOf(err))
		return
	}
	answer := KeyStatus{State: s.State.String()}
	if s.State != idem.StateNone {
		answer.OperationID, answer.Kind, answer.Attempt = s.OperationID, s.Kind.String(), s.Attempt
		answer.Since, answer.ExpiresAt = s.Since.UTC(), s.ExpiresAt.UTC()
	}
	if s.State.Open() {
		answer.Resolver = &s.Resolves
	}
	writeJSON(c.Writer, http.StatusOK, "application/json", answer)
}

func (x *Exchange) status(c Call) (idem.Status, error) {
	key, err := idem.ParseKey(c.Request.Header[x.header])
	if err != nil {
		return idem.Status{}, err
	}
	scope, err := x.policy.ScopeOf(c.ScopeContext)
	if err != nil {
		return idem.Status{}, err
	}
	return x.engine.Status(c.Request.Context(), scope, key, x.statusPolicies...)
}

// IssueToken answers POST with a new one-time token for the caller.
func (x *Exchange) IssueToken(c Call, ttl time.Duration) {
	if !allowed(c, http.MethodPost) {
		return
	}
	scope, err := x.policy.ScopeOf(c.ScopeContext)
	var token idem.Token
	if err == nil {
		token, err = x.engine.IssueToken(c.Request.Context(), scope, ttl)
	}
	if err != nil {
		x.refuse(&c, refusalOf(err))
		return
	}
	writeJSON(c.Writer, http.StatusCreated, "application/json", IssuedToken{token.Value, token.ExpiresAt.UTC()})
}

// allowed answers every other method with 405.
func allowed(c Call, methods ...string) bool {
	if slices.Contains(methods, c.Request.Method) {
		return true
	}
	for _, m := range methods {
		c.Writer.Header().Add("Allow", m)
	}
	c.Writer.WriteHeader(http.StatusMethodNotAllowed)
	return false
}
