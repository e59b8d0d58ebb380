package console_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestBasicAuth(t *testing.T) {
	t.Parallel()
	authorise := console.BasicAuth(map[string]string{"ada": "secret", "bob": ""}, console.Operator{Name: "nobody", MaySettle: true})
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	page := console.Handler(console.Config{Engine: engine, Authorise: authorise})
	for _, tt := range []struct {
		name, user, password string
		want                 int
	}{
		{"right", "ada", "secret", 200},
		{"wrong password", "ada", "secret2", 401},
		{"no password", "ada", "", 401},
		{"unknown name", "eve", "secret", 401},
		{"a name without a password", "bob", "", 401},
		{"unknown name without a password", "eve", "", 401},
		{"nothing", "", "", 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if tt.user != "" {
				r.SetBasicAuth(tt.user, tt.password)
			}
			w := httptest.NewRecorder()
			page.ServeHTTP(w, r)
			if asks := w.Header().Get("WWW-Authenticate") != ""; w.Code != tt.want || asks != (tt.want == 401) {
				t.Errorf("status %d, asks for a password %v, want %d", w.Code, asks, tt.want)
			}
			if op, err := authorise(r); err == nil && (op != console.Operator{Name: "ada", MaySettle: true}) {
				t.Errorf("the operator is %+v", op)
			}
		})
	}
}
