package sqlstore

import (
	"strconv"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// InnoDB shows a commit before it is on the disk. A replay waits until it is there.
func TestReplaySoonAfterTheCommitWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{}, func(s *service) {
		rev := func() int64 { return get[int64](s, s.pools.read, "SELECT rev FROM idem_records") }
		s.want(s.pay("k1"), paid)
		before := rev()
		s.want(s.pay("k1"), paidBefore)
		if rev() == before {
			s.Error("the replay has written nothing, so it did not wait for the disk")
		}
		mustExec(s, s.pools.write, "UPDATE idem_records SET settled = settled - "+strconv.FormatInt(flushTime.Microseconds(), 10))
		before = rev()
		s.want(s.pay("k1"), paidBefore)
		if rev() != before {
			s.Error("a late replay has written something")
		}
	})
}

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
