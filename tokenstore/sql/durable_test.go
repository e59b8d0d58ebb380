package sqlstore

import (
	"strconv"
	"testing"
)

// InnoDB shows a commit before it is on the disk. A replay waits until it is there.
func TestReplaySoonAfterTheCommitWaitsForTheDisk(t *testing.T) {
	onMariaDB(t, serviceParts{}, func(s *service) {
		rev := func() (rev int64) {
			if err := s.pools.read.QueryRow("SELECT rev FROM idem_records").Scan(&rev); err != nil {
				s.Fatal(err)
			}
			return rev
		}
		s.want(s.pay("k1"), paid)
		before := rev()
		s.want(s.pay("k1"), paidBefore)
		if s.joined.visibleEarly && rev() == before {
			t.Error("the replay has written nothing, so it did not wait for the disk")
		}
		mustExec(s, s.pools.write, "UPDATE idem_records SET settled = settled - "+strconv.FormatInt(flushTime.Microseconds(), 10))
		before = rev()
		s.want(s.pay("k1"), paidBefore)
		if rev() != before {
			t.Error("a late replay has written something")
		}
	})
}
