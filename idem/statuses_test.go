package idem_test

import (
	"net/http"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A status that the route puts in doubt is never told as "not admitted", also not after the resolver has
// released the key. Any other status keeps its meaning.
func TestStatusInDoubtOnARouteWithAResolver(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.StatusesInDoubt, p.InDoubt = []int{http.StatusTooManyRequests}, resolverSays(idem.NotApplied())
	}})
	_, err := b.doWith("k1", "a", answers(http.StatusTooManyRequests))
	b.wantRefused(err, idem.CodeUnavailable)
	if res, err := b.doWith("k2", "a", answers(http.StatusForbidden)); err != nil || res.Response.Status != http.StatusForbidden {
		t.Errorf("Do() = %+v, %v, want the handler's 403", res, err)
	}
	res, err := b.do("k1", "b")
	b.wantPaid(res, err, 1, false)
}
