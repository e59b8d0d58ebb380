package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// completed completes a key, and returns its settlement.
func completed(tb testing.TB, s *store, id driver.KeyID) driver.Settlement {
	tb.Helper()
	st := settlementOf(mustBegin(tb, s, id, request(5)), "")
	must(tb, callSettle(tb.Context(), s, id, st))
	return st
}

// A completed record that may not be on the disk is no answer. Without the wait for the disk every
// call that found it fails.
func TestRecordThatMayBeLostIsNoAnswer(t *testing.T) {
	t.Parallel()
	b := backends()[1]
	p := b.migrated(t)
	id := key(1)
	st := completed(t, b.store(t, p, sqlstore.WithExpiry(0)), id)
	broken := open(t, "mysql", p.dsn)
	s := b.store(t, pools{write: broken, read: p.read, dsn: p.dsn}, sqlstore.WithExpiry(0))
	must(t, broken.Close())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	token := request(6)
	token.Kind = driver.IssuedToken
	for name, call := range map[string]func() (driver.State, error){
		"Get":    func() (driver.State, error) { rec, err := s.Get(ctx, id); return rec.State, err },
		"Issue":  func() (driver.State, error) { rec, err := s.Issue(ctx, id, time.Hour); return rec.State, err },
		"Begin":  func() (driver.State, error) { res, err := s.Begin(ctx, id, token); return res.Record.State, err },
		"Settle": func() (driver.State, error) { res, err := s.Settle(ctx, id, st); return res.Record.State, err },
	} {
		state, err := call()
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || strings.Contains(fmt.Sprint(err), "kept changing") || state != driver.StateNone {
			t.Errorf("%s() without the wait for the disk = %v, %v, want the error of the database", name, state, err)
		}
	}
}

// A record that is gone after the wait for the disk was no answer.
func TestRecordThatGoesBeforeTheDiskHasItIsNoAnswer(t *testing.T) {
	t.Parallel()
	b := backends()[1]
	p := b.migrated(t)
	good := b.store(t, p, sqlstore.WithExpiry(0))
	far, proxy := behindProxy(t, p)
	s := b.store(t, far, sqlstore.WithExpiry(0))
	for name, call := range map[string]func(id driver.KeyID, st driver.Settlement) (bool, error){
		"Get": func(id driver.KeyID, _ driver.Settlement) (bool, error) {
			rec, err := s.Get(t.Context(), id)
			return rec.State != driver.StateNone, err
		},
		"Settle": func(id driver.KeyID, st driver.Settlement) (bool, error) {
			res, err := s.Settle(t.Context(), id, st)
			return res.Settled, err
		},
	} {
		id := idem.NewKeyID("gone", idem.Key(name))
		st := completed(t, good, id)
		touch := proxy.HoldNext(testserver.Contains("SET rev = ? WHERE"))
		done := make(chan error, 1)
		var found bool
		go func() {
			var err error
			found, err = call(id, st)
			done <- err
		}()
		select {
		case <-touch.Held():
		case err := <-done:
			t.Fatalf("%s() = %v, and waits for no disk", name, err)
		}
		mustExec(t, p.write, "DELETE FROM idem_records WHERE k = ?", id[:])
		touch.Release()
		if err := <-done; err != nil || found {
			t.Errorf("%s() of a record that went = found %t, %v, want not found", name, found, err)
		}
	}
}

// A person's decision and the settlement that it made are written together.
func TestDecisionThatCannotBeKeptSettlesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		id, a := begin(t, s, "decided")
		mustExec(t, p.write, "DROP TABLE idem_decisions")
		if res, err := s.Settle(t.Context(), id, settlementOf(a, "alice")); res.Settled || !errors.Is(err, sqlstore.ErrNotMigrated) {
			t.Errorf("Settle() by a person = settled %t, %v, want %v", res.Settled, err, sqlstore.ErrNotMigrated)
		}
		if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StatePending {
			t.Errorf("Get() = %v, %v, want pending", rec.State, err)
		}
		if in := p.write.Stats().InUse; in != 0 {
			t.Errorf("%d connections are in use, want 0", in)
		}
	})
}

// A response that has no binary form is an error, and not a settlement that was refused.
func TestResponseWithoutBinaryForm(t *testing.T) {
	t.Parallel()
	b := onSQLite
	s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
	id, a := begin(t, s, "invalid")
	st := settlementOf(a, "")
	st.Response = &driver.Response{Status: 200, Header: map[string][]string{"X": make([]string, 1<<20)}}
	if res, err := s.Settle(t.Context(), id, st); res.Settled || !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Settle() with a million values = settled %t, %v, want %v", res.Settled, err, driver.ErrResponseInvalid)
	}
}

// An Expire whose connection is lost fails, or has removed all that was due.
func TestExpireOverLostConnections(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		good := b.store(t, p, sqlstore.WithExpiry(0))
		far, proxy := behindProxy(t, p)
		s := b.store(t, far, sqlstore.WithExpiry(0))
		lost := 0
		for n := 1; ; n++ {
			for i := range 3 {
				a := mustBegin(t, good, key(i), request(uint64(n)))
				settle(t, good, key(i), driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
			}
			pass(t, good, 2*time.Hour)
			if err := s.Ping(t.Context()); err != nil { // makes a connection
				t.Fatal(err)
			}
			var seen atomic.Int64
			proxy.DropNextRequest(func(testserver.Request) bool { return seen.Add(1) == int64(n) })
			got, err := s.Expire(t.Context(), 100)
			proxy.Restore()
			if left := count(t, good, "{records}"); got+left != 3 || err == nil && left != 0 {
				t.Errorf("Expire() without message %d = %d, %v, and %d of 3 records are left", n, got, err, left)
			}
			if err != nil {
				if lost++; !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("Expire() without message %d = %v, want %v", n, err, driver.ErrUnavailable)
				}
			}
			if in := far.write.Stats().InUse; in != 0 {
				t.Fatalf("%d connections are in use after message %d was lost, want 0", in, n)
			}
			if seen.Load() < int64(n) {
				break
			}
			must(t, errOf(good.Expire(t.Context(), 100)))
		}
		if lost == 0 {
			t.Error("no call noticed a lost connection")
		}
	})
}

// A list whose reading breaks off is an error, and not a shorter list.
func TestListsThatBreakOffAreErrors(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p, spy := b.migrated(t).spied(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	id, a := begin(t, s, "one")
	must(t, errOf(s.Settle(t.Context(), id, driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateUnknown, Decision: driver.Decision{By: "alice"}})))
	due, a := begin(t, s, "due")
	settle(t, s, due, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
	pass(t, s, 2*time.Hour)
	all, broken := calls(s, id), errors.New("broken off")
	for name, list := range map[string]string{"EachKey": "idem_records", "Decisions": "idem_decisions", "ListOpen": "idem_records", "Expire": "ORDER BY expires"} {
		spy.sees(func(st *statement) {
			if strings.Contains(st.text, list) {
				st.end = broken
			}
		})
		if err := all[name](t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), broken.Error()) {
			t.Errorf("%s() of a list that breaks off = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
}

// A key that is none is damage, and belongs to no request.
func TestListsWithDamagedKeysAreErrors(t *testing.T) {
	t.Parallel()
	b := onSQLite
	s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
	begin(t, s, "one")
	mustExec(t, s.write, "UPDATE idem_records SET k = substr(k, 1, 5)")
	for _, name := range []string{"EachKey", "ListOpen"} {
		if err := calls(s, key(1))[name](t.Context()); err == nil || !strings.Contains(err.Error(), "key ID of 5 bytes") {
			t.Errorf("%s() with half a key = %v, want an error", name, err)
		}
	}
}

// A state that is rare among the open records is found behind many others.
func TestListOpenGoesOnAfterAPageWithoutMatches(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
		first, _ := begin(t, s, "first")
		duplicate(t, s, first, 2*fewestRead)
		mustExec(t, s.write, s.sql("UPDATE {records} SET started = started - 1000000, open_since = open_since - 1000000"))
		id, a := begin(t, s, "last")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateUnknown})
		found := 0
		for q := (driver.OpenQuery{State: driver.StateUnknown, Limit: 1}); ; {
			page, err := s.ListOpen(t.Context(), q)
			must(t, err)
			if found += len(page.Records); page.Next == nil {
				break
			}
			q.After = page.Next
		}
		if found != 1 {
			t.Errorf("ListOpen() found %d unknown records in all pages, want 1", found)
		}
	})
}

// slowLog ends a line only after the store was told to stop, and then looks into the database.
type slowLog struct {
	slog.Handler
	entered chan struct{}
	look    func()
}

func (*slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *slowLog) Handle(ctx context.Context, _ slog.Record) error {
	close(l.entered)
	<-ctx.Done()
	l.look()
	return nil
}

// After Close the store uses the database no more by itself, so the caller may close that too.
func TestCloseWaitsForTheRemovalOfExpiredRecords(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	id, a := begin(t, s, "soon")
	settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
	pass(t, s, 2*time.Hour)
	mustExec(t, p.write, "CREATE TRIGGER kept BEFORE DELETE ON idem_records BEGIN SELECT RAISE(ABORT, 'kept'); END")
	var looked atomic.Bool
	log := &slowLog{slog.DiscardHandler, make(chan struct{}), func() { count(t, s, "{records}"); looked.Store(true) }}
	background := b.store(t, p, sqlstore.WithExpiry(time.Millisecond), sqlstore.WithLogger(slog.New(log)))
	<-log.entered
	if err := background.Close(); err != nil || !looked.Load() {
		t.Errorf("Close() = %v beside a removal that goes on: %t, want it to wait", err, !looked.Load())
	}
}
