package recipes

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// What is in a namespace is what the longer path names, and excludes nothing of
// the same name elsewhere.
func TestNamespace(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	held, err := MustNewMutex(c.Namespace("/billing").Namespace("/eu"), "/m").TryAcquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer held.ReleaseInBackground()
	if _, err := MustNewMutex(c, "/billing/eu/m").TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() of the same lock = %v, want ErrLocked", err)
	}
	other, err := MustNewMutex(c.Namespace("/shipping"), "/m").TryAcquire(bounded(t))
	if err != nil {
		t.Errorf("TryAcquire() in another namespace = %v", err)
	} else {
		other.ReleaseInBackground()
	}
}
