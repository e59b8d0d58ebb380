package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// A hold tells that the servers could not be asked, for a check as for a release.
func TestHoldWithoutAConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	h := hold(t, MustNewReentrantMutex(r.Client, "/m"), "me")
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	if _, err := h.Check(canceled(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Check() without a connection = %v, want %v", err, driver.ErrUnavailable)
	}
	if err := h.Release(canceled(t)); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Release() without a connection = %v, want %v and its cause", err, driver.ErrUnavailable)
	}
	r.Proxy.Refuse(false)
	if err := h.Release(bounded(t)); err != nil {
		t.Errorf("Release() again = %v", err)
	}
}
