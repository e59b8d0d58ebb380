package console

import (
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
)

// maxSignOuts bounds the forms that are remembered. An older one signs out once more.
const maxSignOuts = 256

// signOutPath takes forms without a token. A page that was open for long can sign out too, and so can a form that the
// browser repeats for the next operator. A form of another site is refused all the same.
const signOutPath = "/sign-out"

// signOuts are the forms that have signed somebody out, oldest first.
type signOuts struct {
	mu   sync.Mutex
	used []string
}

// first reports whether a form comes for the first time.
func (s *signOuts) first(form string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.used, form) {
		return false
	}
	if len(s.used) == maxSignOuts {
		s.used = slices.Delete(s.used, 0, 1)
	}
	s.used = append(s.used, form)
	return true
}

// newSignOut names a form that signs an operator out. It is empty for an operator who signed in elsewhere,
// because the console cannot end that session.
func newSignOut(r *http.Request) string {
	if _, _, basic := r.BasicAuth(); !basic {
		return ""
	}
	return rand.Text()
}

// signOut refuses the operator's password once, which makes the browser forget it. HTTP basic authentication
// has no other way (RFC 7617). The browser then asks for a password. If it gets one, it sends the same form
// again, and the operator is signed in.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if !c.signOuts.first(r.PostForm.Get("form")) {
		seeOther(w, root(r))
		return
	}
	w.Header().Set("WWW-Authenticate", c.guard.challenge(errAskForPassword))
	c.render(w, r, http.StatusUnauthorized, "error", errorPage{page: page{Title: "Signed out", Root: root(r)}, Text: "You are signed out.", SignIn: true})
}
