package idemhttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// sends is a transport that notes the keys it is given.
type sends struct{ keys []string }

func (s *sends) RoundTrip(r *http.Request) (*http.Response, error) {
	s.keys = append(s.keys, strings.Join(r.Header["Idempotency-Key"], ","))
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
}

// Each row is two requests of one handler. The other system must take the second one for a repeat
// only if it is one.
func TestTwoRequestsOfOneHandler(t *testing.T) {
	t.Parallel()
	byHeader := idemhttp.WithCallName(func(r *http.Request) string { return r.Header.Get("Call") })
	for name, tt := range map[string]struct {
		first, second [4]string // method, URL, body, name
		same, refused bool
	}{
		"the same request":           {[4]string{"POST", "http://bank/pay", "1"}, [4]string{"POST", "http://bank/pay", "1"}, true, false},
		"another body":               {[4]string{"POST", "http://bank/pay", "1"}, [4]string{"POST", "http://bank/pay", "2"}, false, true},
		"another query":              {[4]string{"POST", "http://bank/pay?to=a", "1"}, [4]string{"POST", "http://bank/pay?to=b", "1"}, false, false},
		"another path":               {[4]string{"POST", "http://bank/pay", "1"}, [4]string{"POST", "http://bank/fee", "1"}, false, false},
		"another host":               {[4]string{"POST", "http://bank/pay", "1"}, [4]string{"POST", "http://card/pay", "1"}, false, false},
		"another method":             {[4]string{"POST", "http://bank/pay", "1"}, [4]string{"PATCH", "http://bank/pay", "1"}, false, false},
		"two names":                  {[4]string{"POST", "http://bank/pay", "1", "a"}, [4]string{"POST", "http://bank/pay", "2", "b"}, false, false},
		"one name for two URLs":      {[4]string{"POST", "http://bank/pay", "1", "a"}, [4]string{"POST", "http://bank/fee", "1", "a"}, false, true},
		"one name for two methods":   {[4]string{"POST", "http://bank/pay", "1", "a"}, [4]string{"PATCH", "http://bank/pay", "1", "a"}, false, true},
		"one name, the same request": {[4]string{"POST", "http://bank/pay", "1", "a"}, [4]string{"POST", "http://bank/pay", "1", "a"}, true, false},
	} {
		base := &sends{}
		client := http.Client{Transport: idemhttp.MustNewTransport(base, byHeader)}
		var errs [2]error
		protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.Header.Set("Idempotency-Key", "k1")
		protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for i, call := range [][4]string{tt.first, tt.second} {
				errs[i] = call4(r.Context(), &client, call)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
		if errs[0] != nil || errors.Is(errs[1], idem.ErrCallNameReused) != tt.refused {
			t.Errorf("%s: %v, want the second one refused: %v", name, errs, tt.refused)
		}
		if tt.refused && len(base.keys) != 1 || !tt.refused && (len(base.keys) != 2 || (base.keys[0] == base.keys[1]) != tt.same) {
			t.Errorf("%s: keys %q, want the same: %v, want the second one sent: %v", name, base.keys, tt.same, !tt.refused)
		}
	}
}

func call4(ctx context.Context, client *http.Client, call [4]string) error {
	req, err := http.NewRequestWithContext(ctx, call[0], call[1], strings.NewReader(call[2]))
	if err != nil {
		return err
	}
	if call[3] != "" {
		req.Header.Set("Call", call[3])
	}
	resp, err := client.Do(req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}
