package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// With a pooler of transactions the lock of a key belongs to the transaction, and nothing is left in
// the session.
func TestJoinedBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{joined: []JoinedOption{WithTransactionPooler()}})
	wantLocks := func(when string, want int) {
		t.Helper()
		var n int
		err := s.pools.read.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&n)
		if err != nil || n != want {
			t.Errorf("%s: %d advisory locks, %v, want %d", when, n, err, want)
		}
	}
	finish := s.started("k1")
	wantLocks("while the handler runs", 1)
	other := startService(t, s.backend, serviceParts{pools: &s.pools, joined: []JoinedOption{WithTransactionPooler()}})
	other.wantState("k1", driver.StatePending)
	other.want(other.pay("k1"), refused(409, idem.CodeInProgress))
	s.want(finish(), paid)
	wantLocks("after the commit", 0)
	other.want(other.pay("k1"), paidBefore)

	s.with(s.paying(http.StatusInternalServerError))
	s.want(s.pay("k2"), answer{status: 500, body: "paid"})
	wantLocks("after a rollback", 0)
	other.want(other.pay("k2"), paid)
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		_, err := tx.Exec("ROLLBACK")
		c.String(201, "paid")
		return err
	}))
	s.want(s.pay("k3"), refused(409, idem.CodeOutcomeUnknown))
	other.want(other.pay("k3"), refused(409, idem.CodeOutcomeUnknown))
	wantLocks("after a handler's ROLLBACK", 0)
	s.wantPayments(2)
}

// A constraint of the application is checked at COMMIT. The database has rolled back then, and the
// next request runs.
func TestJoinedCommitRefusedByAConstraintIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			s := startOn(t, d, serviceParts{})
			mustExec(t, s.pools.write, "CREATE TABLE accounts (id bigint PRIMARY KEY)")
			mustExec(t, s.pools.write, "ALTER TABLE payments ADD COLUMN account bigint REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED")
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := s.insert(c, tx)
				_, updated := tx.Exec("UPDATE payments SET account = 7")
				c.String(201, "paid")
				return errors.Join(err, updated)
			}))
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			if told := s.saw(telemetry.EventReleased); len(told) != 1 || !errors.Is(told[0], driver.ErrRolledBack) {
				t.Errorf("released because of %v, want %v", told, driver.ErrRolledBack)
			}
			s.wantState("k1", driver.StateNone)
			s.wantPayments(0)
			s.wantOnePayment("k1")
		})
	}
}

// CheckOwner is the gate before a call to another system. It is closed once the transaction has gone.
func TestJoinedCheckOwnerAfterTheTransactionIsLost(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		check := func(statement string, want error) {
			s.Helper()
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if _, err := idem.CheckOwner(c); err != nil {
					s.Errorf("CheckOwner() in the transaction = %v, want <nil>", err)
				}
				_, _ = tx.Exec(statement)
				if _, err := idem.CheckOwner(c); !errors.Is(err, want) {
					s.Errorf("CheckOwner() after %s = %v, want %v", statement, err, want)
				}
				return errors.New("give up")
			}))
			if a := s.pay(statement); a.status < 400 {
				s.Errorf("the answer after %s is %v, want an error", statement, a)
			}
		}
		check("ROLLBACK", driver.ErrEscaped)
		if s.backend.dialect == dialect.PostgreSQL {
			check("INSERT INTO nowhere VALUES (1)", driver.ErrUnavailable)
		}
		s.wantPayments(0)
	})
}

// A person says that an attempt in doubt had no effect. The next request with the key runs, once.
func TestJoinedKeyReleasedByAPersonRunsAgain(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		_, err := tx.Exec("ROLLBACK")
		c.String(201, "paid")
		return err
	}))
	s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
	policy := &idem.Policy{AllowGlobalKeys: true}
	rec, err := s.engine.Decide(t.Context(), idem.NewKeyID("merchant", "k1"), driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "ada", Reason: "looked"}, policy)
	if err != nil || rec.State != driver.StateReleased {
		t.Fatalf("Decide() = %v, %v, want released", rec.State, err)
	}
	s.wantOnePayment("k1")
	rec, err = s.joined.Get(t.Context(), idem.NewKeyID("merchant", "k1"))
	if err != nil || rec.Attempt.Number != 2 || rec.State != driver.StateCompleted {
		t.Errorf("Get() = attempt %d, %v, %v, want attempt 2, completed", rec.Attempt.Number, rec.State, err)
	}
}

func joinedRequest(kind driver.KeyKind) driver.JoinedRequest {
	return driver.JoinedRequest{Kind: kind, Route: "POST /pay", Nonce: driver.NewNonce(), Fingerprint: driver.Fingerprint{Version: 1, Sum: [32]byte{1}}, ResultTTL: time.Hour}
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
}

// The engine reads the record first, and another request may change it before BeginJoined.
func TestBeginJoinedStartsOnlyWhatTheRecordLetsStart(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		want := func(what string, req driver.JoinedRequest, state driver.State) {
			s.Helper()
			s.wantNotBegun(what, id, req, state)
		}
		want("a token that nobody issued", joinedRequest(driver.IssuedToken), driver.StateNone)
		if _, err := s.joined.Issue(ctx, id, time.Hour); err != nil {
			s.Fatal(err)
		}
		want("a client key in place of a token", joinedRequest(driver.ClientKey), driver.StateIssued)
		begin, err := s.joined.BeginJoined(ctx, id, joinedRequest(driver.IssuedToken))
		if err != nil || begin.Tx == nil {
			s.Fatalf("BeginJoined() of an issued token = %+v, %v", begin, err)
		}
		st := driver.Settlement{Attempt: begin.Record.Attempt, ID: begin.Record.Attempt.Nonce, State: driver.StateCompleted,
			ResultTTL: time.Hour, KeyTTL: time.Hour, Response: &driver.Response{Status: 201}}
		if err := begin.Tx.Commit(ctx, st); err != nil {
			s.Fatalf("Commit() = %v, want <nil>", err)
		}
		want("a token that is used", joinedRequest(driver.IssuedToken), driver.StateCompleted)
	})
}

// Another request may change the record between the read and the statement that takes the key, or
// its time may be over.
func TestBeginJoinedTakesOnlyTheRecordThatItHasRead(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx := context.Background()
		takes := func(id driver.KeyID, kind driver.KeyKind, from *driver.Record) bool {
			s.Helper()
			t, held, err := s.joined.tryBegin(ctx, id, joinedRequest(kind), from)
			if held || err != nil {
				s.Fatalf("tryBegin() = held %t, %v", held, err)
			}
			if t != nil {
				t.finish(ctx, true)
			}
			return t != nil
		}
		id, nonce := idem.NewKeyID("merchant", "k1"), driver.NewNonce()
		begun, err := s.joined.Begin(ctx, id, driver.BeginRequest{Route: "POST /pay", Fence: driver.Fence{Domain: "locks", Token: 7}, Nonce: nonce})
		if err != nil {
			s.Fatal(err)
		}
		res, err := s.joined.Settle(ctx, id, driver.Settlement{Attempt: begun.Record.Attempt, ID: nonce, State: driver.StateReleased, KeyTTL: time.Hour})
		if err != nil || !res.Settled {
			s.Fatalf("Settle() = %+v, %v", res, err)
		}
		for what, change := range map[string]func(r *driver.Record){
			"state":  func(r *driver.Record) { r.State = driver.StateUnknown },
			"number": func(r *driver.Record) { r.Attempt.Number++ },
			"domain": func(r *driver.Record) { r.Attempt.Fence.Domain = "others" },
			"fence":  func(r *driver.Record) { r.Attempt.Fence.Token++ },
			"nonce":  func(r *driver.Record) { r.Attempt.Nonce = driver.NewNonce() },
		} {
			read := res.Record
			if change(&read); takes(id, driver.ClientKey, &read) {
				s.Errorf("a record with another %s is taken", what)
			}
		}
		if !takes(id, driver.ClientKey, &res.Record) {
			s.Error("the record itself is not taken")
		}

		token := idem.NewKeyID("merchant", "token")
		issued, err := s.joined.Issue(ctx, token, time.Millisecond)
		for err == nil && issued.State != driver.StateNone {
			read := issued
			if issued, err = s.joined.Get(ctx, token); issued.State == driver.StateNone && takes(token, driver.IssuedToken, &read) {
				s.Error("a token is taken after its time")
			}
		}
		if err != nil {
			s.Fatal(err)
		}
	})
}

// The row of a key whose time is over is in the way of an INSERT. A key whose result alone is over stays.
func TestForgetSparesAKeyWhoseResultAloneIsOver(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id, nonce := context.Background(), idem.NewKeyID("merchant", "k1"), driver.NewNonce()
		begun, err := s.joined.Begin(ctx, id, driver.BeginRequest{Route: "POST /pay", Fence: driver.Fence{Domain: "locks", Token: 7}, Nonce: nonce})
		if err != nil {
			s.Fatal(err)
		}
		_, err = s.joined.Settle(ctx, id, driver.Settlement{Attempt: begun.Record.Attempt, ID: nonce, State: driver.StateCompleted,
			ResultTTL: time.Microsecond, KeyTTL: time.Hour, Response: &driver.Response{Status: 201}})
		if err != nil {
			s.Fatal(err)
		}
		s.eventually("the result is over", func() bool { // SQLite counts milliseconds
			rec, err := s.joined.Get(ctx, id)
			return err == nil && rec.State == driver.StateExpired
		})
		if err := s.joined.forget(ctx, id); err != nil {
			s.Fatal(err)
		}
		s.wantState("k1", driver.StateExpired)
	})
}

// The slots were made for a pool of another size.
func TestBeginJoinedNoticesAnotherSizeOfThePool(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		s.pools.write.SetMaxOpenConns(3)
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.pools.write.SetMaxOpenConns(8)
		s.wantOnePayment("k1")
	})
}

// The database keeps an idle transaction for longer than its handler may take.
func TestJoinedIdleLimitIsLongerThanTheHandlersTime(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.HandlerTimeout, p.CallsOtherSystems = 5*time.Minute, true }}, func(s *service) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if left, err := idem.CheckOwner(c); err != nil || left != 5*time.Minute+idleMargin {
				s.Errorf("CheckOwner() = %v, %v, want %v", left, err, 5*time.Minute+idleMargin)
			}
			err := s.insert(c, tx)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
	})
}

// A handler that calls other systems does not run if its fingerprint cannot be bound.
func TestJoinedHandlerDoesNotRunWithoutItsBinding(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		s.with(s.paying(http.StatusBadGateway))
		s.want(s.pay("k1"), answer{status: 502, body: "paid"})
		runs := s.runs
		mustExec(s, s.pools.write, s.joined.names.sql("UPDATE {bindings} SET fingerprint = ?"), []byte("short"))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		mustExec(s, s.pools.write, "DROP TABLE idem_bindings")
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		if s.runs != runs {
			s.Errorf("the handler ran %d more times, want 0", s.runs-runs)
		}
		s.wantPayments(0)
	})
}

func TestJoinedStoreThatIsReadOnly(t *testing.T) {
	t.Parallel()
	ctx, id := t.Context(), idem.NewKeyID("merchant", "k1")
	b := onSQLite
	j, err := b.store(t, b.migrated(t), WithReadOnly(), WithSoleProcess()).Joined()
	if err != nil {
		t.Fatal(err)
	}
	_, begin := j.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
	_, bind := j.Bind(ctx, id, driver.Fingerprint{Version: 1}, time.Hour)
	_, probe := j.Probe(ctx, id)
	for method, err := range map[string]error{"BeginJoined": begin, "Bind": bind, "Probe": probe} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s() = %v, want %v", method, err, ErrReadOnly)
		}
	}
}

// A driver that cannot refuse commits would let a handler commit a payment without its record.
func TestDriverWithoutACommitHookIsRefused(t *testing.T) {
	t.Parallel()
	conn, err := freshPostgres(t).write.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := setCommitHook(conn, func() bool { return false }); !errors.Is(err, errNoHook) {
		t.Errorf("setCommitHook() on another driver = %v, want %v", err, errNoHook)
	}
}
