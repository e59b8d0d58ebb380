package sqlstore_test

import (
	"strconv"
	"testing"
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
