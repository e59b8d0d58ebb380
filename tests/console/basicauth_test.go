package console_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestBasicAuth(t *testing.T) {
	t.Parallel()
	authorise := console.BasicAuth(map[string]string{"ada": "secret", "bob": ""}, console.Operator{Name: "nobody", MaySettle: true})
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, user, password string
		want                 int
	}{
		{"right", "ada", "secret", 200},
		{"wrong password", "ada", "secret2", 401},
		{"no password", "ada", "", 401},
		{"unknown name", "mallory", "secret", 401},
		{"a name without a password", "bob", "", 401},
		{"unknown name without a password", "mallory", "", 401},
		{"nothing", "", "", 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if tt.user != "" {
				r.SetBasicAuth(tt.user, tt.password)
			}
			var log bytes.Buffer
			page := console.MustNew(engine, authorise, console.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			w := httptest.NewRecorder()
			page.ServeHTTP(w, r)
			if guess := tt.user != "" && tt.want == 401; guess != strings.Contains(log.String(), "wrong name or password") || guess && strings.Contains(log.String(), tt.user) {
				t.Errorf("the log has %q, want a guess %v and no name", log.String(), guess)
			}
			if asks := w.Header().Get("WWW-Authenticate") != ""; w.Code != tt.want || asks != (tt.want == 401) {
				t.Errorf("status %d, asks for a password %v, want %d", w.Code, asks, tt.want)
			}
			if op, err := authorise(r); err == nil && (op != console.Operator{Name: "ada", MaySettle: true}) {
				t.Errorf("the operator is %+v", op)
			}
		})
	}
}
