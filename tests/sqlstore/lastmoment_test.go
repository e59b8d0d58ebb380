package sqlstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The call that told the time of the database had waited for a connection. The last moment of the next call is at its deadline all
// the same.
func TestLastMomentAfterACallThatHadToWait(t *testing.T) {
	t.Parallel()
	backends()[0].run(t, func(t *testing.T, b backend) {
		p, spy := b.migrated(t).spied(t)
		s := b.store(t, p)
		p.write.SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		deadline, _ := ctx.Deadline()
		busy, err := p.write.Conn(ctx)
		must(t, err)
		clock := func() (now int64) {
			t.Helper()
			must(t, busy.QueryRowContext(ctx, s.sql("SELECT {clock}")).Scan(&now))
			return now
		}
		begin := func(n int) error {
			req := request(1)
			_, err := s.BeginLocked(ctx, key(n), req, driver.OfferedLock{Owner: "owner", Nonce: req.Nonce, TTL: time.Minute})
			return err
		}
		waited, told := p.write.Stats().WaitCount, make(chan error, 1)
		go func() { told <- begin(1) }()
		wait(t, "a call that waits for a connection", func() bool { return p.write.Stats().WaitCount > waited })
		began := clock()
		wait(t, "the time that it waits", func() bool { return clock()-began > (5 * lateBy).Microseconds() })
		must(t, busy.Close())
		must(t, <-told)
		var last time.Time
		spy.sees(func(st *statement) {
			if strings.Contains(st.text, "idem_locks") && last.IsZero() {
				last = time.UnixMicro(st.args[5].Value.(int64))
			}
		})
		must(t, begin(2))
		left := time.Until(deadline) // before the time of the database, which is later then
		now, err := s.Clock(ctx)
		must(t, err)
		if ahead := last.Sub(now.Add(left)); ahead > 2*lateBy {
			t.Errorf("the last moment is %v after the deadline by the time of the database, want at most %v", ahead, 2*lateBy)
		}
	})
}
