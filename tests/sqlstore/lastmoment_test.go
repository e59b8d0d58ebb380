package sqlstore_test

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/inside"
)

// The call that told the time of the database had waited for a connection. The last moment of the next call is at its deadline all
// the same.
func TestLastMomentAfterACallThatHadToWait(t *testing.T) {
	t.Parallel()
	backends()[0].run(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p)
		p.write.SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		busy, err := p.write.Conn(ctx)
		must(t, err)
		clock := func() (now int64) {
			t.Helper()
			must(t, busy.QueryRowContext(ctx, sqlOf(s, "SELECT {clock}")).Scan(&now))
			return now
		}
		waited := p.write.Stats().WaitCount
		told, id, req := make(chan error, 1), key(1), request(1)
		go func() {
			_, err := s.BeginLocked(ctx, id, req, driver.OfferedLock{Owner: "owner", Nonce: req.Nonce, TTL: time.Minute})
			told <- err
		}()
		wait(t, "a call that waits for a connection", func() bool { return p.write.Stats().WaitCount > waited })
		began := clock()
		wait(t, "the time that it waits", func() bool { return clock()-began > (5 * lateBy).Microseconds() })
		must(t, busy.Close())
		must(t, <-told)
		// The last moment is reckoned from the time of the database at an instant of this process.
		seen := reflect.ValueOf(inside.Field[atomic.Pointer[struct{}]](s, "clock", "seen")).MethodByName("Load").Call(nil)[0].UnsafePointer()
		reading := (*struct {
			now int64
			at  leaseclock.Instant
		})(seen)
		estimate := time.UnixMicro(reading.now).Add(leaseclock.Now().Sub(reading.at))
		now, err := s.Clock(ctx)
		must(t, err)
		if ahead := estimate.Sub(now); ahead > lateBy {
			t.Errorf("the estimate is %v ahead of the database, want at most %v", ahead, lateBy)
		}
	})
}
