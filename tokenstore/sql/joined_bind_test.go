package sqlstore

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func bodies() (first, second driver.Fingerprint) {
	return driver.Fingerprint{Version: 1, Sum: [32]byte{1}}, driver.Fingerprint{Version: 1, Sum: [32]byte{2}}
}

// bindBoth binds two bodies at once, and wants them to agree. meanwhile runs while both are on their way.
func (s *service) bindBoth(id driver.KeyID, meanwhile func()) {
	s.Helper()
	var fps, bound [2]driver.Fingerprint
	fps[0], fps[1] = bodies()
	var both sync.WaitGroup
	for i := range bound {
		both.Go(func() {
			var err error
			if bound[i], err = s.joined.Bind(context.Background(), id, fps[i], time.Hour); err != nil {
				s.Errorf("Bind() = %v, want <nil>", err)
			}
		})
	}
	meanwhile()
	both.Wait()
	if bound[0] != bound[1] || bound[0].IsZero() {
		s.Errorf("bound %v and %v, want one of the two", bound[0], bound[1])
	}
}

// wantWaiting waits until a number of statements about bindings do not end.
func (s *service) wantWaiting(want int) {
	s.Helper()
	count := "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
	if s.backend.dialect == dialect.PostgreSQL {
		count = "SELECT 'waits', count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	}
	s.eventually("statements wait", func() bool {
		var name string
		var n int
		return s.pools.read.QueryRow(count).Scan(&name, &n) == nil && n == want
	})
}

// The first of three bodies is rolled back, or the time of the one before is over. On MySQL the other
// two meet a deadlock then. It counts the waits of the whole server, so it is not parallel to other tests.
func TestBindingDecidesBetweenTwoBodiesThatHaveWaited(t *testing.T) {
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		waiting := func(first func(tx *sql.Tx) error) {
			t.Helper()
			tx, err := s.pools.read.Begin()
			must(t, err)
			defer tx.Rollback()
			must(t, first(tx))
			s.bindBoth(id, func() {
				s.wantWaiting(2)
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			})
		}
		waiting(func(tx *sql.Tx) error {
			_, err := tx.Exec(s.joined.names.sql("INSERT INTO {bindings} (k, form, kind, route, fingerprint, created, expires) VALUES (?, 1, 0, ?, ?, {clock}, {clock} + ?)"),
				id[:], []byte{}, packFingerprint(driver.Fingerprint{Version: 1, Sum: [32]byte{3}}), time.Hour.Microseconds())
			return err
		})
		mustExec(t, s.pools.write, "UPDATE idem_bindings SET expires = 1")
		waiting(func(tx *sql.Tx) error {
			_, err := tx.Exec("UPDATE idem_bindings SET expires = 2")
			return err
		})
		bound, err := s.joined.Bind(ctx, id, driver.Fingerprint{Version: 1, Sum: [32]byte{4}}, time.Hour)
		if first, second := bodies(); err != nil || bound != first && bound != second {
			t.Errorf("Bind() = %v, %v, want one of the two", bound, err)
		}
	})
}
