package sqlstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// begin starts an attempt on a new key.
func begin(tb testing.TB, s *store, key string) (driver.KeyID, driver.Attempt) {
	tb.Helper()
	id := idem.NewKeyID("test", idem.Key(key))
	res, err := s.Begin(tb.Context(), id, request(1))
	if err != nil || !res.Begun {
		tb.Fatalf("Begin(%s) = begun %v, %v, want begun", key, res.Begun, err)
	}
	return id, res.Record.Attempt
}

func request(fence uint64) driver.BeginRequest {
	return driver.BeginRequest{Kind: driver.ClientKey, Route: "POST /pay", Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: "test", Token: fence}}
}

// settle settles an attempt, and returns the record.
func settle(tb testing.TB, s *store, id driver.KeyID, st driver.Settlement) driver.Record {
	tb.Helper()
	if st.ID = st.Attempt.Nonce; st.State != driver.StateReleased {
		st.Response = &driver.Response{Status: 201, Body: []byte("paid")}
	}
	res, err := s.Settle(tb.Context(), id, st)
	if err != nil || !res.Settled {
		tb.Fatalf("Settle(%v) = settled %v, %v, want settled", st.State, res.Settled, err)
	}
	return res.Record
}

// pass makes some time pass for all records and bindings of a store.
func pass(tb testing.TB, s *store, d time.Duration) {
	tb.Helper()
	us := d.Microseconds()
	mustExec(tb, s.write, s.sql(`UPDATE {records} SET expires = expires - ?, created = created - ?, started = started - ?,
		settled = settled - ?, result_expires = result_expires - ?, key_expires = key_expires - ?, token_expires = token_expires - ?,
		open_since = open_since - ?`), us, us, us, us, us, us, us, us)
	mustExec(tb, s.write, s.sql(`UPDATE {bindings} SET expires = expires - ?`), us)
}

func count(tb testing.TB, s *store, of string, args ...any) int {
	tb.Helper()
	return get[int](tb, s.read, s.sql("SELECT count(*) FROM "+of), args...)
}

func expire(tb testing.TB, s *store, most, want int) {
	tb.Helper()
	if n, err := s.Expire(tb.Context(), most); n != want || err != nil {
		tb.Errorf("Expire(%d) = %d, %v, want %d", most, n, err, want)
	}
}

func TestExpire(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
		_, _ = begin(t, s, "pending")
		id, a := begin(t, s, "unknown")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateUnknown})
		completed, a := begin(t, s, "completed")
		settle(t, s, completed, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: 3 * time.Hour})
		id, a = begin(t, s, "released")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: 3 * time.Hour})
		token := idem.NewKeyID("test", "token")
		must(t, errOf(s.Issue(t.Context(), token, time.Hour)))
		mustExec(t, s.write, s.sql("INSERT INTO {bindings} (k, form, kind, route, fingerprint, created, expires) VALUES (?, 1, 0, ?, ?, 0, {clock} + 7200000000)"),
			id[:], []byte("r"), []byte("f"))

		expire(t, s, 100, 0)
		pass(t, s, time.Hour)
		expire(t, s, 100, 2) // the token, and the result of the completed record
		if n := count(t, s, "{records} WHERE response IS NOT NULL"); n != 1 {
			t.Errorf("%d responses are left, want the one of the unknown record", n)
		}
		rec, err := s.Get(t.Context(), completed)
		if err != nil || rec.State != driver.StateExpired || rec.Response != nil || !rec.Settled.Before(rec.ResultExpires) {
			t.Errorf("Get(completed) = %+v, %v, want expired", rec, err)
		}
		expire(t, s, 100, 0)
		pass(t, s, time.Hour)
		expire(t, s, 100, 1) // the binding
		pass(t, s, time.Hour)
		expire(t, s, 1, 1)
		expire(t, s, 100, 1)
		pass(t, s, 1000*time.Hour)
		expire(t, s, 100, 0)
		if n := count(t, s, "{records}"); n != 2 {
			t.Errorf("%d records are left, want the pending and the unknown one", n)
		}
	})
}

// A row that a newer build wrote is not for this build to remove.
func TestExpireLeavesNewerRecords(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
		id, a := begin(t, s, "newer")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour})
		duplicate(t, s, id, expiryBatch)
		mustExec(t, s.write, s.sql("UPDATE {records} SET form = 2"))
		pass(t, s, time.Hour)
		late, a := begin(t, s, "late")
		settle(t, s, late, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Minute})
		pass(t, s, time.Hour)
		expire(t, s, 2*expiryBatch, 1)
		if n := count(t, s, "{records} WHERE form = 2"); n != expiryBatch+1 {
			t.Errorf("%d records of a newer build are left, want %d", n, expiryBatch+1)
		}
	})
}

// While a batch is removed, new keys begin between the keys of the batch.
func TestExpireBlocksNoNewKeys(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		spied, spy := p.spied(t)
		s, expiring := b.store(t, p, sqlstore.WithExpiry(0)), b.store(t, spied, sqlstore.WithExpiry(0))
		id, a := begin(t, s, "first")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
		duplicate(t, s, id, expiryBatch-1)
		pass(t, s, 2*time.Hour)
		begun := 0
		begin := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for range 50 {
				if _, err := s.Begin(ctx, key(expiryBatch+begun), request(1)); err != nil {
					t.Fatalf("Begin() beside a batch = %v, want <nil>", err)
				}
				begun++
			}
		}
		spy.sees(func(st *statement) {
			switch verb, _, _ := strings.Cut(st.text, " "); {
			case verb == "BEGIN": // every second key goes after it was read
				for i := 0; i < expiryBatch; i += 2 {
					k := key(i)
					mustExec(t, p.write, s.sql("DELETE FROM {records} WHERE k = ?"), k[:])
				}
			case st.args != nil && (verb == "UPDATE" || verb == "DELETE"):
				begin()
			}
		})
		expire(t, expiring, expiryBatch, expiryBatch/2)
		if begun != 100 {
			t.Errorf("%d keys began beside the batch, want 100", begun)
		}
	})
}

// A handler may keep a record locked that was due when it began. The others are removed meanwhile. If a whole batch is
// locked, Expire leaves it to the next time, and keeps no connection.
func TestExpirePassesOverLockedRecords(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		id, a := begin(t, s, "first")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
		besideALock := func(where string, want int) {
			t.Helper()
			tx, err := s.write.BeginTx(t.Context(), sqldialect.Of(b.dialect).TxOptions())
			must(t, err)
			defer tx.Rollback()
			must(t, errOf(tx.Exec(s.sql("UPDATE {records} SET rev = rev + 1"+where))))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if n, err := s.Expire(ctx, 2*expiryBatch); n != want || err != nil {
				t.Errorf("Expire() beside locked records%s = %d, %v, want %d", where, n, err, want)
			}
			if in := p.write.Stats().InUse; in != 1 {
				t.Errorf("%d connections are in use, want that of the locks", in)
			}
		}
		duplicate(t, s, id, 2)
		pass(t, s, 2*time.Hour)
		mustExec(t, s.write, s.sql("UPDATE {records} SET attempt = 77 WHERE k = ?"), id[:])
		besideALock(" WHERE attempt = 77", 2)
		duplicate(t, s, id, expiryBatch+98)
		besideALock("", 0)
		expire(t, s, expiryBatch+1, expiryBatch+1)
		expire(t, s, 2*expiryBatch, 98)
	})
}

// Several processes remove more than a batch. New attempts begin on the same keys meanwhile.
func TestExpireFromSeveralProcesses(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		const n = 3*expiryBatch + 7
		id, a := begin(t, s, "first")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
		duplicate(t, s, id, n-1)
		pass(t, s, 2*time.Hour)
		var wg sync.WaitGroup
		var mu sync.Mutex
		total, begun := 0, 0
		for range 4 {
			wg.Go(func() {
				got, err := s.Expire(t.Context(), n)
				mu.Lock()
				defer mu.Unlock()
				if total += got; err != nil {
					t.Errorf("Expire() = %v", err)
				}
			})
		}
		wg.Go(func() {
			for i := 0; i < n-1; i += 50 {
				res, err := s.Begin(t.Context(), key(i), request(2))
				if err != nil || !res.Begun || res.Record.Attempt.Number != 1 {
					t.Errorf("Begin(%d) = %+v, %v, want attempt 1", i, res.Record.Attempt, err)
				}
				begun++
			}
		})
		wg.Wait()
		if _, err := s.Expire(t.Context(), n); err != nil {
			t.Errorf("Expire() = %v", err)
		}
		if left := count(t, s, "{records}"); left != begun {
			t.Errorf("%d records are left, want the %d that began again", left, begun)
		}
		if total > n {
			t.Errorf("Expire() = %d in all, want at most %d", total, n)
		}
	})
}

// Another transaction was in the way of a batch. That is for the next time, and no outage.
func TestExpireThatMeetsAConflictIsNoFailure(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
	id, a := begin(t, s, "due")
	settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
	pass(t, s, 2*time.Hour)
	mustExec(t, s.write, `CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$;
		CREATE TRIGGER conflict BEFORE DELETE ON idem_records FOR EACH ROW EXECUTE FUNCTION conflict()`)
	expire(t, s, 100, 0)
	mustExec(t, s.write, "DROP TRIGGER conflict ON idem_records")
	expire(t, s, 100, 1)
}

// duplicate copies a record to the first n keys.
func duplicate(tb testing.TB, s *store, id driver.KeyID, n int) {
	tb.Helper()
	tx, err := s.write.BeginTx(tb.Context(), nil)
	must(tb, err)
	defer tx.Rollback()
	cols := strings.Join(columns, ", ")
	insert, err := tx.PrepareContext(tb.Context(), s.sql("INSERT INTO {records} (k, rev, "+cols+") SELECT ?, 1, "+cols+" FROM {records} WHERE k = ?"))
	must(tb, err)
	defer insert.Close()
	for i := range n {
		k := key(i)
		must(tb, errOf(insert.ExecContext(tb.Context(), k[:], id[:])))
	}
	must(tb, tx.Commit())
}

func key(i int) driver.KeyID { return idem.NewKeyID("test", idem.Key(fmt.Sprint("key ", i))) }

// syncBuffer is a log that is read while the store writes it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *syncBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *syncBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Records are removed in the background until the store is closed. A store that cannot do that says so, and goes on
// when it can.
func TestExpireInBackground(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	id, a := begin(t, s, "soon")
	settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Microsecond})
	mustExec(t, p.write, "CREATE TRIGGER kept BEFORE DELETE ON idem_records BEGIN SELECT RAISE(ABORT, 'kept'); END")
	var log syncBuffer
	background := b.store(t, p, sqlstore.WithExpiry(time.Millisecond), sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	wait(t, "the store says that it cannot remove", func() bool { return strings.Contains(log.String(), "cannot remove expired records") })
	mustExec(t, p.write, "DROP TRIGGER kept")
	wait(t, "the record is removed", func() bool { return count(t, s, "{records}") == 0 })
	for range 2 {
		if err := background.Close(); err != nil {
			t.Errorf("Close() = %v, want <nil>", err)
		}
	}
	if _, err := background.Get(t.Context(), id); err != nil {
		t.Errorf("Get() after Close = %v, want <nil>", err)
	}
}

// EachKey reads the keys in pages.
func TestEachKeyGoesOverItsPages(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	begin(t, s, "one")
	const more = 2*keysRead + 1
	cols := strings.Join(columns, ", ")
	mustExec(t, p.write, s.sql("INSERT INTO {records} (k, rev, "+cols+") SELECT sha256(i::text::bytea), rev, "+cols+" FROM {records}, generate_series(1, ?::int) AS n (i)"), more)
	seen := map[driver.KeyID]bool{}
	if err := s.EachKey(t.Context(), func(id driver.KeyID) bool { seen[id] = true; return true }); err != nil || len(seen) != more+1 {
		t.Errorf("EachKey() saw %d keys, %v, want %d", len(seen), err, more+1)
	}
	calls := 0
	if err := s.EachKey(t.Context(), func(driver.KeyID) bool { calls++; return calls < 10 }); err != nil || calls != 10 {
		t.Errorf("EachKey() called %d times, %v, want 10", calls, err)
	}
}

// The clock of the database is a day ahead of the process's, so a time is over for the database
// alone. The key stays until the process's clock says so too.
func TestClockOfTheDatabaseThatJumpedForgetsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		ahead, spy := p.spied(t)
		s, late := b.store(t, p, sqlstore.WithExpiry(0)), b.store(t, ahead, sqlstore.WithExpiry(0))
		spy.sees(func(st *statement) {
			st.text = strings.ReplaceAll(st.text, b.kind().Clock, fmt.Sprintf("(%s + %d)", b.kind().Clock, (25*time.Hour).Microseconds()))
		})
		id, a := begin(t, s, "paid")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: 24 * time.Hour})
		if n, err := late.Expire(t.Context(), 1000); err != nil || n != 0 {
			t.Errorf("Expire() = %d, %v, want 0", n, err)
		}
		if rec, err := late.Get(t.Context(), id); err != nil || rec.State != driver.StateCompleted {
			t.Errorf("Get() = %v, %v, want %v", rec.State, err, driver.StateCompleted)
		}
		if res, err := late.Begin(t.Context(), id, request(9)); err != nil || res.Begun {
			t.Errorf("Begin() = begun %v, %v, want the completed record", res.Begun, err)
		}
		pass(t, s, 24*time.Hour+time.Minute)
		if n, err := s.Expire(t.Context(), 1000); err != nil || n != 1 {
			t.Errorf("Expire() by two clocks that agree = %d, %v, want 1", n, err)
		}
	})
}
