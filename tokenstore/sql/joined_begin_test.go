package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// keep stores a record of an attempt in a state.
func (s *service) keep(id driver.KeyID, state driver.State) driver.Record {
	s.Helper()
	ctx, nonce := context.Background(), driver.NewNonce()
	begun, err := s.joined.Begin(ctx, id, driver.BeginRequest{Route: "POST /pay", Fence: driver.Fence{Domain: "locks", Token: 7}, Nonce: nonce})
	if err != nil {
		s.Fatal(err)
	}
	st := driver.Settlement{Attempt: begun.Record.Attempt, ID: nonce, State: state, ResultTTL: time.Hour, KeyTTL: time.Hour}
	if state == driver.StateCompleted {
		st.Response = &driver.Response{Status: 201}
	}
	res, err := s.joined.Settle(ctx, id, st)
	if err != nil || !res.Settled {
		s.Fatalf("Settle() = %+v, %v", res, err)
	}
	return res.Record
}

func runAgain(from driver.Attempt) driver.JoinedRequest {
	req := joinedRequest(driver.ClientKey)
	req.RunAgainFrom = &from
	return req
}

func completedAs(a driver.Attempt) driver.Settlement {
	return driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour, Response: &driver.Response{Status: 201}}
}

// An attempt that runs again under a shorter policy is remembered for as long as the first one was to be.
func TestJoinedRunAgainKeepsTheLongerTimes(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		first := joinedRequest(driver.ClientKey)
		begun, err := s.joined.Begin(ctx, id, driver.BeginRequest{Route: first.Route, Fence: driver.Fence{Domain: "locks", Token: 7}, Nonce: driver.NewNonce(),
			Fingerprint: first.Fingerprint, ResultTTL: 100 * time.Hour, KeyTTL: 200 * time.Hour})
		if err != nil {
			s.Fatal(err)
		}
		unknown := driver.Settlement{Attempt: begun.Record.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown, ResultTTL: time.Hour, KeyTTL: time.Hour}
		if res, err := s.joined.Settle(ctx, id, unknown); err != nil || !res.Settled {
			s.Fatalf("Settle() = %+v, %v", res, err)
		}
		again, err := s.joined.BeginJoined(ctx, id, runAgain(begun.Record.Attempt)) // its times are an hour
		if err != nil || again.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v, want a transaction", again, err)
		}
		defer again.Tx.Release(ctx)
		if err := again.Tx.Commit(ctx, completedAs(again.Record.Attempt)); err != nil {
			s.Fatalf("Commit() = %v", err)
		}
		rec, err := s.joined.Get(ctx, id)
		if err != nil || rec.State != driver.StateCompleted || rec.ResultExpires.Sub(rec.Settled) < 100*time.Hour || rec.KeyExpires.Sub(rec.Settled) < 200*time.Hour {
			s.Errorf("Get() = %v, its result for %v and its key for %v, %v; want 100 h and 200 h", rec.State, rec.ResultExpires.Sub(rec.Settled), rec.KeyExpires.Sub(rec.Settled), err)
		}
	})
}

// An attempt runs again only from the open attempt that its caller has seen.
func TestBeginJoinedRunsAgainOnlyFromTheAttemptInDoubt(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		wantNone := func(what string, req driver.JoinedRequest, state driver.State) {
			s.Helper()
			s.wantNotBegun(what, id, req, state)
			s.wantNothingOpen(what)
		}
		wantNone("without a record", runAgain(driver.Attempt{Number: 1, Nonce: driver.NewNonce()}), driver.StateNone)
		unknown := s.keep(id, driver.StateUnknown)
		other := unknown.Attempt
		other.Nonce = driver.NewNonce()
		wantNone("from another attempt", runAgain(other), driver.StateUnknown)
		wantNone("from none", joinedRequest(driver.ClientKey), driver.StateUnknown)

		began, err := s.joined.BeginJoined(ctx, id, runAgain(unknown.Attempt))
		if err != nil || began.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v, want a transaction", began, err)
		}
		if want := (driver.Replaced{State: driver.StateUnknown, Attempt: unknown.Attempt}); began.Replaced != want {
			s.Errorf("BeginJoined() replaced %+v, want %+v", began.Replaced, want)
		}
		if err := began.Tx.Commit(ctx, completedAs(began.Record.Attempt)); err != nil {
			s.Fatal(err)
		}
		rec, err := s.joined.Get(ctx, id)
		if err != nil || rec.Attempt != began.Record.Attempt || rec.Attempt.Number != 2 || !rec.Created.Equal(began.Record.Created) || rec.Started.Sub(began.Record.Started).Abs() > time.Second {
			s.Errorf("Get() = %+v, %v, want what BeginJoined said: %+v", rec, err, began.Record)
		}
		wantNone("from a completed attempt", runAgain(rec.Attempt), driver.StateCompleted)
		wantNone("of a completed key", joinedRequest(driver.ClientKey), driver.StateCompleted)
	})
}

// hookedConnector does something before a connection of its choice.
type hookedConnector struct {
	Connector
	before func(n int)
	n      *int
}

func (c hookedConnector) Connect(ctx context.Context) (Session, error) {
	*c.n++
	c.before(*c.n)
	return c.Connector.Connect(ctx)
}

// The record is removed after it has been read. A token, or an attempt in doubt, is not there any more.
func TestBeginJoinedOfARecordThatIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, plain := context.Background(), s.joined.connector
		begin := func(key string, req driver.JoinedRequest, removeBefore int) driver.JoinedBegin {
			s.Helper()
			s.joined.connector = hookedConnector{plain, func(n int) {
				if n == removeBefore {
					mustExec(s, s.pools.write, "DELETE FROM idem_records")
				}
			}, new(int)}
			got, err := s.joined.BeginJoined(ctx, idem.NewKeyID("merchant", idem.Key(key)), req)
			if err != nil || got.Held {
				s.Errorf("%s: BeginJoined() = held %t, %v", key, got.Held, err)
			}
			if got.Tx != nil {
				_ = got.Tx.Rollback(ctx)
			}
			return got
		}
		if _, err := s.joined.Issue(ctx, idem.NewKeyID("merchant", "token"), time.Hour); err != nil {
			s.Fatal(err)
		}
		if got := begin("token", joinedRequest(driver.IssuedToken), 1); got.Tx != nil || got.Record.State != driver.StateNone {
			s.Errorf("BeginJoined() of a token that is removed = %+v, want no attempt", got)
		}
		unknown := s.keep(idem.NewKeyID("merchant", "doubt"), driver.StateUnknown)
		if got := begin("doubt", runAgain(unknown.Attempt), 1); got.Tx != nil || got.Record.State != driver.StateNone {
			s.Errorf("BeginJoined() from an attempt that is removed = %+v, want no attempt", got)
		}
		s.keep(idem.NewKeyID("merchant", "released"), driver.StateReleased)
		if got := begin("released", joinedRequest(driver.ClientKey), 2); got.Tx == nil || got.Record.Attempt.Number != 1 {
			s.Errorf("BeginJoined() of a released key that is removed = %+v, want its first attempt", got)
		}
	})
}

func TestJoinedRecordThatCannotBeReadStartsAndDecidesNothing(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		if _, err := s.joined.Issue(ctx, id, time.Hour); err != nil {
			s.Fatal(err)
		}
		mustExec(s, s.pools.write, "UPDATE idem_records SET form = 2")
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			if got, err := s.joined.BeginJoined(ctx, id, joinedRequest(kind)); got.Tx != nil || !errors.Is(err, driver.ErrNewerRecord) {
				s.Errorf("BeginJoined() = %+v, %v, want %v", got, err, driver.ErrNewerRecord)
			}
		}
		if got, err := s.joined.Probe(ctx, id); !errors.Is(err, driver.ErrNewerRecord) {
			s.Errorf("Probe() = %v, %v, want %v", got.State, err, driver.ErrNewerRecord)
		}
		s.wantNothingOpen("after errors")
	})
}

// As long as a transaction has the key, nothing is decided about its COMMIT.
func TestProbeDecidesNothingBesideAnOpenTransaction(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{rewrite: func(p *pools) {
		switch {
		case p.pooled(): // PgBouncer takes no settings from a client
		case strings.HasPrefix(p.dsn, "postgres"):
			p.write = p.with(t, "lock_timeout=100")
		case !strings.Contains(p.dsn, "file:"):
			p.write = p.with(t, "innodb_lock_wait_timeout=1")
		}
	}}, func(s *service) {
		ctx := context.Background()
		for _, state := range []driver.State{driver.StateNone, driver.StateReleased} {
			id := idem.NewKeyID("merchant", idem.Key(state.String()))
			if state != driver.StateNone {
				s.keep(id, state)
			}
			begin, err := s.joined.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
			if err != nil || begin.Tx == nil {
				s.Fatalf("BeginJoined() = %+v, %v, want a transaction", begin, err)
			}
			short, cancel := ctx, context.CancelFunc(func() {})
			if s.backend.dialect == dialect.SQLite || s.backend.name == throughPgBouncer.name { // its connections have no limit of their own
				short, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			if rec, err := s.joined.Probe(short, id); !errors.Is(err, driver.ErrUnavailable) {
				s.Errorf("Probe() of a key that was %v = %v, %v, want %v", state, rec.State, err, driver.ErrUnavailable)
			}
			cancel()
			if err := begin.Tx.Commit(ctx, completedAs(begin.Record.Attempt)); err != nil {
				s.Fatal(err)
			}
			if rec, err := s.joined.Probe(ctx, id); err != nil || rec.State != driver.StateCompleted {
				s.Errorf("Probe() after COMMIT = %v, %v, want completed", rec.State, err)
			}
		}
		if rec, err := s.joined.Probe(ctx, idem.NewKeyID("merchant", "new")); err != nil || rec.State != driver.StateNone {
			s.Errorf("Probe() of a new key = %v, %v, want none", rec.State, err)
		}
		s.wantNothingOpen("after the probes")
	})
}

// The pool for reading may still answer. It decides nothing by itself.
func TestJoinedStoreWithoutItsServerIsUnavailable(t *testing.T) {
	t.Parallel()
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		session, err := s.joined.connector.Connect(ctx)
		if err != nil {
			s.Fatal(err)
		}
		proxy.Refuse(true)
		proxy.Cut()
		if err := session.Begin(ctx, sql.LevelDefault); err == nil {
			s.Error("Begin() over a lost connection = <nil>, want an error")
		}
		session.Close(true, func() {})
		begin, began := s.joined.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
		_, held := s.joined.Held(ctx, id)
		_, probed := s.joined.Probe(ctx, id)
		bound, bind := s.joined.Bind(ctx, id, driver.Fingerprint{Version: 1}, time.Hour)
		for method, err := range map[string]error{"BeginJoined": began, "Held": held, "Probe": probed, "Bind": bind, "Ping": s.joined.Ping(ctx)} {
			if !errors.Is(err, driver.ErrUnavailable) {
				s.Errorf("%s() = %v, want %v", method, err, driver.ErrUnavailable)
			}
		}
		if begin.Tx != nil || begin.Held || !bound.IsZero() {
			s.Errorf("BeginJoined() = %+v, Bind() = %v, want nothing", begin, bound)
		}
		s.wantNothingOpen("without the server")
		proxy.Restore()
		s.wantOnePayment("k1")
	})
}
