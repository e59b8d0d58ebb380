package around

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

const order = `{"amount":1250}`

// proxies start with the files of docs/around.md.
var proxies = map[string]func(s *service, replace ...string) *testserver.WebProxy{
	"nginx": func(s *service, replace ...string) *testserver.WebProxy {
		return testserver.StartNginx(s, s.configured("nginx.conf", replace...))
	},
	"HAProxy": func(s *service, replace ...string) *testserver.WebProxy {
		return testserver.StartHAProxy(s, s.configured("haproxy.cfg", replace...))
	},
}

// An instance pays, and its answer is lost. Where the configuration allows it, the proxy sends the request to the
// other instance.
func TestProxiesThatRepeat(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method, path string
		key          bool
		unprotected  bool
		only         string // this proxy
		status       int
		arrivals     int32
		charges      int32
	}{
		"a key":                             {method: "POST", path: "/payments", key: true, status: 201, arrivals: 2, charges: 1},
		"a key that the service ignores":    {method: "POST", path: "/payments", key: true, unprotected: true, status: 201, arrivals: 2, charges: 2},
		"no key":                            {method: "POST", path: "/transfers", unprotected: true, status: 502, arrivals: 1, charges: 1},
		"no key on the route, with HAProxy": {method: "POST", path: "/payments", unprotected: true, only: "HAProxy", status: 502, arrivals: 1, charges: 1},
		"a PUT without a key, with nginx":   {method: "PUT", path: "/transfers", unprotected: true, only: "nginx", status: 201, arrivals: 2, charges: 2},
		"a PUT without a key, with HAProxy": {method: "PUT", path: "/transfers", unprotected: true, only: "HAProxy", status: 502, arrivals: 1, charges: 1},
	} {
		for proxy, start := range proxies {
			if tt.only != "" && tt.only != proxy {
				continue
			}
			t.Run(name+"/"+proxy, func(t *testing.T) {
				t.Parallel()
				s := &service{T: t, losing: true, unprotected: tt.unprotected}
				s.start()
				header := with()
				if tt.key {
					header = with("Idempotency-Key", "order-1001")
				}
				a := send(t, tt.method, start(s).URL()+tt.path, order, header)
				if replayed := tt.status == 201 && !tt.unprotected; a.status != tt.status || a.replayed != replayed || a.status == 201 && a.body != order {
					t.Errorf("%s %s = %+v, want %d, replayed %v", tt.method, tt.path, a, tt.status, replayed)
				}
				s.want(tt.arrivals, tt.charges)
			})
		}
	}
}

// A proxy with a shorter time-out than the payment gives up, and the payment goes on. A repeat gets its answer.
func TestProxiesThatGiveUp(t *testing.T) {
	t.Parallel()
	for proxy, start := range proxies {
		t.Run(proxy, func(t *testing.T) {
			t.Parallel()
			release, ended := make(chan struct{}), make(chan error, 1)
			s := &service{T: t, slow: func(ctx context.Context) {
				<-release
				ended <- ctx.Err()
			}}
			s.start()
			url := start(s, "proxy_read_timeout 40s", "proxy_read_timeout 1s", "timeout server 40s", "timeout server 1s").URL() + "/payments"
			header := with("Idempotency-Key", "order-1001")
			a := send(t, http.MethodPost, url, order, header)
			if inProgress := a.status == 409 && strings.Contains(a.body, `"in-progress"`); !inProgress && a.status != 504 {
				t.Errorf("the answer of a proxy that has given up = %+v, want 409 in-progress or 504", a)
			}
			close(release)
			if err := <-ended; err != nil {
				t.Errorf("the context of the payment = %v, want it alive", err)
			}
			kit.Eventually(t, "the answer of the payment", func() error {
				a := send(t, http.MethodPost, url, order, header)
				if a == (answer{201, true, order}) {
					return nil
				}
				if !slices.Contains([]int{409, 502, 503, 504}, a.status) {
					t.Errorf("a repeat = %+v", a)
				}
				return fmt.Errorf("a repeat = %+v", a)
			})
			if charges := s.charges.Load(); charges != 1 {
				t.Errorf("%d payments were made, want 1", charges)
			}
		})
	}
}
