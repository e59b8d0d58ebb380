package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

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
			_, err := tx.Exec(s.store.sql("INSERT INTO {bindings} (k, form, kind, route, fingerprint, created, expires) VALUES (?, 1, 0, ?, ?, {clock}, {clock} + ?)"),
				id[:], []byte{}, append([]byte{1, 3}, make([]byte, 31)...), time.Hour.Microseconds())
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

// A handler that calls other systems does not run if its fingerprint cannot be bound.
func TestJoinedHandlerDoesNotRunWithoutItsBinding(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		s.with(s.paying(http.StatusBadGateway))
		s.want(s.pay("k1"), answer{status: 502, body: "paid"})
		runs := s.runs
		mustExec(s, s.pools.write, s.store.sql("UPDATE {bindings} SET fingerprint = ?"), []byte("short"))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		mustExec(s, s.pools.write, "DROP TABLE idem_bindings")
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		if s.runs != runs {
			s.Errorf("the handler ran %d more times, want 0", s.runs-runs)
		}
		s.wantPayments(0)
	})
}

// 3. Two bodies at once: one of them is bound.
func TestJoinedBindingDecidesBetweenTwoBodiesAtOnce(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		for i := range 20 {
			s.bindBoth(idOf(fmt.Sprint(i)), func() {})
		}
	})
}

// 3. A binding ends with the key's time to live, and every attempt extends it. Neither a shorter time nor another body
// does.
func TestJoinedBindingLastsForTheKeysTime(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		id, ctx := idOf("k1"), context.Background()
		first, second := bodies()
		if got, err := s.joined.Bind(ctx, id, first, time.Microsecond); err != nil || got != first {
			s.Errorf("Bind() = %v, %v, want %v", got, err, first)
		}
		s.eventually("the binding expires", func() bool {
			got, err := s.joined.Bind(ctx, id, second, 10*time.Minute)
			return err == nil && got == second
		})
		for _, c := range []struct {
			fp         driver.Fingerprint
			ttl, lasts time.Duration
		}{{first, 2 * time.Hour, 10 * time.Minute}, {second, time.Hour, time.Hour}, {second, time.Minute, time.Hour}, {first, 2 * time.Hour, time.Hour}} {
			got, err := s.joined.Bind(ctx, id, c.fp, c.ttl)
			left := time.Duration(get[int64](s, s.pools.read, s.store.sql("SELECT expires - {clock} FROM {bindings}"))) * time.Microsecond
			if err != nil || got != second || left > c.lasts || left < c.lasts-5*time.Minute {
				s.Errorf("Bind() for %v = %v, %v, and it lasts for %v, want %v for %v", c.ttl, got, err, left, second, c.lasts)
			}
		}
	})
}

// 3. A bank was called for 100, and then everything was rolled back.
func TestJoinedRetryForAnotherAmountIsRefusedAfterABankWasCalled(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		var keys []string
		s.with(func(c *gin.Context) {
			key, err := idem.DownstreamKey(c, "bank")
			if err != nil {
				s.Error(err)
			}
			keys = append(keys, key)
			s.paying(http.StatusBadGateway)(c)
		})
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		s.want(s.payAmount("k1", 900), refused(422, idem.CodeKeyReused))
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		if len(keys) != 2 || keys[0] != keys[1] {
			s.Errorf("the bank saw the keys %q, want the same one twice", keys)
		}
		s.wantPayments(0)
		s.wantOnePayment("k1")
	})
}
