package sqlstore

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The clock of this process may be far from that of the database.
func TestRecordMayBeLostByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	s := &Store{dialect: mysql}
	for _, now := range []time.Time{time.Now().Add(-24 * time.Hour), time.Now().Add(24 * time.Hour)} {
		for age, want := range map[time.Duration]bool{0: true, flushTime - time.Second: true, flushTime: false, time.Hour: false} {
			f := &found{now: now.UnixMicro(), row: row{Form: recordForm, State: int64(driver.StateCompleted), Settled: now.Add(-age).UnixMicro()}}
			if got := s.mayBeLost(f); got != want {
				t.Errorf("mayBeLost() of a record settled %v ago = %t, want %t", age, got, want)
			}
		}
	}
}
