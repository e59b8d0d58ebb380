package sqllock

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// A call that was held up for longer than the row of a free lock stays may have a fence below that of an owner whose row is
// gone.
func TestLockThatWasLongOnItsWayIsNotTaken(t *testing.T) {
	t.Parallel()
	k := &keeper{health: leasing.NewHealth(1, sqldialect.Spoken), unreplicated: func() uint64 { return 0 }}
	late := offer{keeper: k, made: leaseclock.Now().Add(-maxAcquire)}
	if lease, err := late.Taken(driver.Fence{Domain: "d", Token: 1}); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, errLate) {
		t.Errorf("Taken() = %v, %v, want %v", lease, err, errLate)
	}
}
