package zookeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A znode whose ACL was not read in time is not called closed.
func TestOpenParentsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	hold := r.proxy.HoldNext(testserver.Op(testserver.OpGetACL))
	defer hold.Release()
	go func() { <-hold.Held(); cancel() }()
	if open, err := r.c.OpenParents(ctx); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("OpenParents() = %q, %v; want %v and %v", open, err, driver.ErrUnavailable, context.Canceled)
	}
}
