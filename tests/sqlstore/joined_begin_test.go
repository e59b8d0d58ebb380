package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// idOf is the key of a client of the service.
func idOf(key string) driver.KeyID { return idem.NewKeyID("merchant", idem.Key(key)) }

// keep stores a record in a state. It lasts for longer than those of [joinedRequest].
func (s *service) keep(id driver.KeyID, state driver.State) driver.Record {
	s.Helper()
	ctx, nonce := context.Background(), driver.NewNonce()
	switch state {
	case driver.StateNone:
		return driver.Record{}
	case driver.StateIssued:
		rec, err := s.joined.Issue(ctx, id, time.Hour)
		must(s, err)
		return rec
	}
	begun, err := s.joined.Begin(ctx, id, driver.BeginRequest{Route: "POST /pay", Fence: driver.Fence{Domain: "locks", Token: 7}, Nonce: nonce,
		ResultTTL: 100 * time.Hour, KeyTTL: 200 * time.Hour})
	must(s, err)
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

func joinedRequest(kind driver.KeyKind) driver.JoinedRequest {
	return driver.JoinedRequest{Kind: kind, Route: "POST /pay", Nonce: driver.NewNonce(), Fingerprint: driver.Fingerprint{Version: 1, Sum: [32]byte{1}}, ResultTTL: time.Hour}
}

// mustBegin begins an attempt in a transaction.
func (s *service) mustBegin(id driver.KeyID, req driver.JoinedRequest) driver.JoinedBegin {
	s.Helper()
	got, err := s.joined.BeginJoined(context.Background(), id, req)
	if err != nil || got.Tx == nil {
		s.Fatalf("BeginJoined() = %+v, %v, want a transaction", got, err)
	}
	return got
}

// wantNotBegun wants BeginJoined to start nothing, and to return a record in a state.
func (s *service) wantNotBegun(what string, id driver.KeyID, req driver.JoinedRequest, state driver.State) {
	s.Helper()
	got, err := s.joined.BeginJoined(context.Background(), id, req)
	if got.Tx != nil {
		s.Errorf("%s: BeginJoined() began an attempt", what)
		_ = got.Tx.Rollback(context.Background())
	}
	if err != nil || got.Held || got.Record.State != state {
		s.Errorf("%s: BeginJoined() = %v, held %t, %v, want %v", what, got.Record.State, got.Held, err, state)
	}
	s.wantNothingOpen(what)
}

func runAgain(from driver.Attempt) driver.JoinedRequest {
	req := joinedRequest(driver.ClientKey)
	req.RunAgainFrom = &from
	return req
}

func completedAs(a driver.Attempt) driver.Settlement {
	return driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour, Response: &driver.Response{Status: 201}}
}

// One request at most may start from what is stored about a key, because the engine has read it first and another request
// may have changed it. The attempt is the next one, and its record lasts for as long as the one before was to last.
func TestBeginJoinedStartsOnlyWhatTheRecordLetsStart(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx := context.Background()
		for state, starts := range map[driver.State]string{
			driver.StateNone: "a client key", driver.StateIssued: "a token", driver.StateReleased: "a client key", driver.StateUnknown: "from the attempt", driver.StateCompleted: "",
		} {
			id := idOf(state.String())
			from := s.keep(id, state)
			other := from.Attempt
			other.Nonce = driver.NewNonce()
			requests := map[string]driver.JoinedRequest{
				"a client key": joinedRequest(driver.ClientKey), "a token": joinedRequest(driver.IssuedToken),
				"from the attempt": runAgain(from.Attempt), "from another attempt": runAgain(other),
			}
			for name, req := range requests {
				if name != starts {
					s.wantNotBegun(fmt.Sprintf("%s of a key that is %v", name, state), id, req, state)
				}
			}
			if starts == "" {
				continue
			}
			if err := s.mustBegin(id, requests[starts]).Tx.Rollback(ctx); err != nil {
				s.Errorf("Rollback() = %v, want <nil>", err)
			}
			began := s.mustBegin(id, requests[starts])
			if want := (driver.Replaced{State: state, Attempt: from.Attempt}); began.Replaced != want || began.Record.Attempt.Number != from.Attempt.Number+1 {
				s.Errorf("BeginJoined() replaced %+v by attempt %d, want the one after %+v", began.Replaced, began.Record.Attempt.Number, want)
			}
			must(s, began.Tx.Commit(ctx, completedAs(began.Record.Attempt)))
			rec, err := s.joined.Get(ctx, id)
			if err != nil || rec.State != driver.StateCompleted || rec.Attempt != began.Record.Attempt || state != driver.StateNone && !rec.Created.Equal(began.Record.Created) || rec.Started.Sub(began.Record.Started).Abs() > time.Second {
				s.Errorf("Get() = %+v, %v, want what BeginJoined said: %+v", rec, err, began.Record)
			}
			if result, key := rec.ResultExpires.Sub(rec.Settled), rec.KeyExpires.Sub(rec.Settled); state == driver.StateUnknown && (result < 100*time.Hour || key < 200*time.Hour) {
				s.Errorf("after a longer policy the result lasts for %v and the key for %v, want 100 h and 200 h", result, key)
			}
			s.wantNotBegun(starts+" that is used", id, requests[starts], driver.StateCompleted)
		}
	})
}

// Another request may change the record or remove it between the read and the statement that takes the key. The attempt
// then starts from the changed record, or not at all.
func TestBeginJoinedTakesOnlyTheRecordThatItHasRead(t *testing.T) {
	t.Parallel()
	const remove, update = "DELETE FROM {records} WHERE k = ?", "UPDATE {records} SET "
	client := func(driver.Attempt) driver.JoinedRequest {
		req := joinedRequest(driver.ClientKey)
		req.Looked = true
		return req
	}
	token := func(driver.Attempt) driver.JoinedRequest { return joinedRequest(driver.IssuedToken) }
	onEachService(t, serviceParts{sees: func(*statement) {}}, func(s *service) {
		for name, c := range map[string]struct {
			state  driver.State
			req    func(driver.Attempt) driver.JoinedRequest
			change string
			starts bool
		}{
			"a token that is removed":                 {driver.StateIssued, token, remove, false},
			"a token whose time is over":              {driver.StateIssued, token, update + "token_expires = 1, expires = 1 WHERE k = ?", false},
			"an attempt in doubt that is removed":     {driver.StateUnknown, runAgain, remove, false},
			"a released key that is removed":          {driver.StateReleased, client, remove, true},
			"a released key in another state":         {driver.StateReleased, client, fmt.Sprint(update, "state = ", int(driver.StateUnknown), " WHERE k = ?"), false},
			"a released key of another attempt":       {driver.StateReleased, client, update + "attempt = attempt + 1 WHERE k = ?", true},
			"a released key of another domain":        {driver.StateReleased, client, update + "domain = k WHERE k = ?", true},
			"a released key of another fence":         {driver.StateReleased, client, update + "fence = fence + 1 WHERE k = ?", true},
			"a released key of another request of it": {driver.StateReleased, client, update + "nonce = substr(k, 1, 16) WHERE k = ?", true},
		} {
			id := idOf(name)
			req := c.req(s.keep(id, c.state).Attempt)
			begin, first := "BEGIN", 1
			if s.backend.name == compounding.name {
				begin = "START TRANSACTION"
			}
			if c.state == driver.StateReleased && (s.backend.dialect != dialect.MySQL || s.backend.name == compounding.name) {
				first = 2 // a client key is inserted unseen first
			}
			var changed driver.Record
			var n atomic.Int64
			s.spy.sees(func(st *statement) {
				if !strings.Contains(st.text, begin) || n.Add(1) != int64(first) {
					return
				}
				mustExec(s, s.beside, s.store.sql(c.change), id[:])
				var err error
				if changed, err = s.joined.Get(context.Background(), id); err != nil {
					s.Error(err)
				}
			})
			if !c.starts {
				want := driver.StateNone
				if c.state == driver.StateReleased {
					want = driver.StateUnknown
				}
				s.wantNotBegun(name, id, req, want)
				continue
			}
			got := s.mustBegin(id, req)
			if want := (driver.Replaced{State: changed.State, Attempt: changed.Attempt}); got.Replaced != want || got.Record.Attempt.Number != changed.Attempt.Number+1 {
				s.Errorf("%s: attempt %d began in place of %+v, want the one after %+v", name, got.Record.Attempt.Number, got.Replaced, want)
			}
			_ = got.Tx.Rollback(context.Background())
		}
	})
}

// Another transaction may have completed the key since it was found to be free.
func TestForgetSparesAKeyThatLasts(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{sees: func(*statement) {}}, func(s *service) {
		const later = "9000000000000000"
		id := idOf("k1")
		s.keep(id, driver.StateCompleted)
		for state, times := range map[driver.State]string{
			driver.StateCompleted: "result_expires = " + later + ", key_expires = " + later + ", expires = " + later,
			driver.StateExpired:   "result_expires = 1, key_expires = " + later + ", expires = 1", // the result alone is over
		} {
			mustExec(s, s.beside, "UPDATE idem_records SET result_expires = 1, key_expires = 1, expires = 1")
			completed := false
			s.spy.once("DELETE FROM", func() {
				mustExec(s, s.beside, "UPDATE idem_records SET "+times)
				completed = true
			})
			s.wantNotBegun("a key that lasts", id, joinedRequest(driver.ClientKey), state)
			if !completed {
				s.Error("the row of a key whose time is over was not removed")
			}
		}
	})
}

// A transaction that is not free in time is an outage, and so is a pool of another size than that for which Joined was called.
func TestBeginJoinedWithoutAFreeTransactionIsUnavailable(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{pool: 2})
		first := s.mustBegin(idOf("first"), joinedRequest(driver.ClientKey))
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := s.joined.BeginJoined(short, idOf("second"), joinedRequest(driver.ClientKey)); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("BeginJoined() beside the only transaction = %v, want %v", err, driver.ErrUnavailable)
		}
		_ = first.Tx.Rollback(t.Context())
		s.pools.write.SetMaxOpenConns(3)
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.pools.write.SetMaxOpenConns(2)
		s.wantOnePayment("k1")
	})
}

func TestJoinedRecordThatCannotBeReadStartsAndDecidesNothing(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		must(s, errOf(s.joined.Issue(ctx, id, time.Hour)))
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
			s.keep(id, state)
			begin := s.mustBegin(id, joinedRequest(driver.ClientKey))
			short, cancel := ctx, context.CancelFunc(func() {})
			if s.backend.dialect == dialect.SQLite || s.backend.name == throughPgBouncer.name { // its connections have no limit of their own
				short, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			if rec, err := s.joined.Probe(short, id); !errors.Is(err, driver.ErrUnavailable) {
				s.Errorf("Probe() of a key that was %v = %v, %v, want %v", state, rec.State, err, driver.ErrUnavailable)
			}
			cancel()
			must(s, begin.Tx.Commit(ctx, completedAs(begin.Record.Attempt)))
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
		proxy.Refuse(true)
		proxy.Cut()
		begin, began := s.joined.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
		_, held := s.joined.Held(ctx, id)
		_, _, heldBy := s.joined.HeldBy(ctx, id)
		_, probed := s.joined.Probe(ctx, id)
		bound, bind := s.joined.Bind(ctx, id, driver.Fingerprint{Version: 1}, time.Hour)
		for method, err := range map[string]error{"BeginJoined": began, "Held": held, "HeldBy": heldBy, "Probe": probed, "Bind": bind, "Ping": s.joined.Ping(ctx)} {
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

func TestJoinedStoreThatIsReadOnly(t *testing.T) {
	t.Parallel()
	ctx, id := t.Context(), idem.NewKeyID("merchant", "k1")
	b := onSQLite
	j, err := b.store(t, b.migrated(t), sqlstore.WithReadOnly(), sqlstore.WithSoleProcess()).Joined()
	must(t, err)
	_, begin := j.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
	_, bind := j.Bind(ctx, id, driver.Fingerprint{Version: 1}, time.Hour)
	_, probe := j.Probe(ctx, id)
	for method, err := range map[string]error{"BeginJoined": begin, "Bind": bind, "Probe": probe} {
		if !errors.Is(err, sqlstore.ErrReadOnly) {
			t.Errorf("%s() = %v, want %v", method, err, sqlstore.ErrReadOnly)
		}
	}
}
