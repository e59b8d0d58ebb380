package console_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A browser forgets a password that is refused. One that asks for it again and gets it sends the same form
// again, and then the operator is signed in.
func TestSignOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	ada := r.as("ada")
	form := ada.get("health").form()
	out := ada.do("POST", "sign-out", form)
	out.want(t, 401, "You are signed out.", `<a href="./">Sign in again</a>`, "!Signed in as", "!ada")
	if got := out.header.Get("WWW-Authenticate"); got != `Basic realm="console"` {
		t.Errorf("WWW-Authenticate is %q, want the challenge of the console", got)
	}
	if again := ada.do("POST", "sign-out", form); again.status != 200 || again.path != "" {
		t.Errorf("the same form again leads to %d at %q, want the first page", again.status, again.path)
	}
	ada.do("POST", "sign-out", ada.get("").form()).want(t, 401, "You are signed out.") // of the next page
	form = ada.get("").form()
	ada.do("POST", "sign-out", form, "Sec-Fetch-Site", "cross-site").want(t, 403, "Nothing was done.")
	ada.do("POST", "sign-out", form).want(t, 401, "You are signed out.")
	if bob := r.as("bob").do("POST", "sign-out", form); bob.status != 200 || !strings.Contains(bob.body, "<strong>bob</strong>") {
		t.Errorf("the form that the browser repeats for bob leads to %d\n%s", bob.status, bob.body)
	}
	if got := ada.get("sign-out"); got.status != 200 || got.path != "" {
		t.Errorf("GET of sign-out leads to %d at %q, want the first page", got.status, got.path)
	}
}

// The console cannot end a session of the service's own sign-in. Its pages lead back to the service.
func TestPagesLeadBackToTheService(t *testing.T) {
	t.Parallel()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	session := func(*http.Request) (console.Operator, error) { return console.Operator{Name: "ada"}, nil }
	for _, tt := range []struct {
		cfg  console.Config
		want string
	}{
		{console.Config{Home: "/pay?a=1&b", Service: "payments"}, `<a href="/pay?a=1&amp;b">Back to payments</a>`},
		{console.Config{Home: "https://pay.example/"}, `<a href="https://pay.example/">Back to the service</a>`},
		{console.Config{Service: "payments"}, ""},
	} {
		w := httptest.NewRecorder()
		console.MustNew(engine, session, tt.cfg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		page := w.Body.String()
		if w.Code != 200 || !strings.Contains(page, tt.want) || strings.Contains(page, "Back to ") != (tt.want != "") || strings.Contains(page, "Sign out") {
			t.Errorf("with %+v the page is %d\n%s\nwant %q and no sign-out", tt.cfg, w.Code, page, tt.want)
		}
	}
}
