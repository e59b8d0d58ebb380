package idemhttp_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// While fingerprint keys are rotated, a repeat is compared by the key of its record.
func TestRepeatsWhileFingerprintKeysAreRotated(t *testing.T) {
	t.Parallel()
	key := func(fill byte) idem.FingerprintKey {
		k, err := idem.NewFingerprintKey(bytes.Repeat([]byte{fill}, 32))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	lock, store := memorylock.New(), memorystore.New()
	post := func(body string, keys ...idem.FingerprintKey) (int, string) {
		engine, err := idem.New(lock, store, idem.WithFingerprintKeys(keys[0], keys[1:]...))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close(context.Background()) }()
		r := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "k1")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		idemhttp.MustNew(engine, idem.Policy{Scope: merchant})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
		})).ServeHTTP(w, r)
		return w.Code, w.Header().Get("Idempotent-Replayed")
	}
	for i, step := range []struct {
		body   string
		keys   []idem.FingerprintKey
		status int
		mark   string
	}{
		{`{"card":"4111"}`, []idem.FingerprintKey{key(1)}, 201, ""},
		{`{"card":"4111"}`, []idem.FingerprintKey{key(2), key(1)}, 201, "true"},
		{`{ "card" : "4111" }`, []idem.FingerprintKey{key(2), key(1)}, 201, "true"},
		{`{"card":"4112"}`, []idem.FingerprintKey{key(2), key(1)}, 422, ""},
		{`{"card":"4111"}`, []idem.FingerprintKey{key(2)}, 503, ""}, // nobody can tell
		{`{"card":"4112"}`, []idem.FingerprintKey{key(2)}, 503, ""},
	} {
		if status, mark := post(step.body, step.keys...); status != step.status || mark != step.mark {
			t.Errorf("step %d: answer = %d, mark %q, want %d, mark %q", i, status, mark, step.status, step.mark)
		}
	}
}
