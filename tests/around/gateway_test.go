package around

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A backend pays, and its answer is lost. The gateway leaves that in doubt, or asks a backend that honours keys
// again.
func TestGatewayOfABackend(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		honours  bool // the backend has the middleware too
		inDoubt  idem.InDoubt
		options  []idemhttp.TransportOption
		first    int
		repeat   int
		arrivals int32
	}{
		"knows no keys":                  {inDoubt: idem.LeaveUnknown(), first: 502, repeat: 409, arrivals: 1},
		"honours keys":                   {honours: true, inDoubt: idem.LeaveUnknown(), options: []idemhttp.TransportOption{idemhttp.WithKeysHonoured()}, first: 201, repeat: 201, arrivals: 2},
		"honours keys, doubt runs again": {honours: true, inDoubt: idem.RunAgain(), first: 502, repeat: 201, arrivals: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{T: t, losing: true, unprotected: !tt.honours}
			s.start()
			backend := &url.URL{Scheme: "http", Host: s.addrs[0]}
			proxy := &httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) {
					r.SetURL(backend)
					r.Out.Header.Del("Idempotency-Key")
				},
				ErrorLog: log.New(io.Discard, "", 0),
			}
			if tt.honours {
				proxy.Transport = idemhttp.MustNewTransport(nil, tt.options...)
			}
			engine, err := idem.New(memorylock.New(), memorystore.New())
			if err != nil {
				t.Fatal(err)
			}
			gateway := httptest.NewServer(idemhttp.MustNew(engine, idem.Policy{Scope: demo, InDoubt: tt.inDoubt})(proxy))
			t.Cleanup(gateway.Close)
			header := with("Idempotency-Key", "order-1001")
			if a := send(t, http.MethodPost, gateway.URL+"/payments", order, header); a.status != tt.first {
				t.Errorf("a payment = %+v, want %d", a, tt.first)
			}
			a := send(t, http.MethodPost, gateway.URL+"/payments", order, header)
			if a.status != tt.repeat || tt.repeat == 409 && !strings.Contains(a.body, `"outcome-unknown"`) {
				t.Errorf("its repeat = %+v, want %d", a, tt.repeat)
			}
			s.want(tt.arrivals, 1)
		})
	}
}
