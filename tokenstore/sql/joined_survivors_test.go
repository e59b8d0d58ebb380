package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// wantNothingOpen wants no transaction, no slot and no advisory lock to be left.
func (s *service) wantNothingOpen(when string) {
	s.Helper()
	s.eventually(when+": every connection is given back", func() bool { return s.pools.write.Stats().InUse == 0 })
	if n := len(s.joined.slots); n != 0 {
		s.Errorf("%s: %d slots are taken, want 0", when, n)
	}
	if s.backend.dialect != PostgreSQL() {
		return
	}
	s.eventually(when+": every advisory lock is free", func() bool { // the server notices the end of a connection soon
		var locks int
		err := s.pools.read.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks)
		return err == nil && locks == 0
	})
}

// keep stores a record of an attempt in a state.
func (s *service) keep(id idem.KeyID, state idem.State) idem.Record {
	s.Helper()
	ctx, nonce := context.Background(), idem.NewNonce()
	begun, err := s.joined.Begin(ctx, id, idem.BeginRequest{Route: "POST /pay", Fence: idem.Fence{Domain: "locks", Token: 7}, Nonce: nonce})
	if err != nil {
		s.Fatal(err)
	}
	st := idem.Settlement{Attempt: begun.Record.Attempt, ID: nonce, State: state, ResultTTL: time.Hour, KeyTTL: time.Hour}
	if state == idem.StateCompleted {
		st.Response = &idem.Response{Status: 201}
	}
	res, err := s.joined.Settle(ctx, id, st)
	if err != nil || !res.Settled {
		s.Fatalf("Settle() = %+v, %v", res, err)
	}
	return res.Record
}

func runAgain(from idem.Attempt) idem.JoinedRequest {
	req := joinedRequest(idem.ClientKey)
	req.RunAgainFrom = &from
	return req
}

func completedAs(a idem.Attempt) idem.Settlement {
	return idem.Settlement{Attempt: a, ID: a.Nonce, State: idem.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour, Response: &idem.Response{Status: 201}}
}

// An attempt runs again only from the open attempt that its caller has seen.
func TestBeginJoinedRunsAgainOnlyFromTheAttemptInDoubt(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		wantNone := func(what string, req idem.JoinedRequest, state idem.State) {
			s.Helper()
			got, err := s.joined.BeginJoined(ctx, id, req)
			if got.Tx != nil {
				s.Errorf("%s: BeginJoined() began an attempt", what)
				_ = got.Tx.Rollback(ctx)
			}
			if err != nil || got.Held || got.Record.State != state {
				s.Errorf("%s: BeginJoined() = %v, held %t, %v, want %v", what, got.Record.State, got.Held, err, state)
			}
			s.wantNothingOpen(what)
		}
		wantNone("without a record", runAgain(idem.Attempt{Number: 1, Nonce: idem.NewNonce()}), idem.StateNone)
		unknown := s.keep(id, idem.StateUnknown)
		other := unknown.Attempt
		other.Nonce = idem.NewNonce()
		wantNone("from another attempt", runAgain(other), idem.StateUnknown)
		wantNone("from none", joinedRequest(idem.ClientKey), idem.StateUnknown)

		began, err := s.joined.BeginJoined(ctx, id, runAgain(unknown.Attempt))
		if err != nil || began.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v, want a transaction", began, err)
		}
		if want := (idem.Replaced{State: idem.StateUnknown, Attempt: unknown.Attempt}); began.Replaced != want {
			s.Errorf("BeginJoined() replaced %+v, want %+v", began.Replaced, want)
		}
		if err := began.Tx.Commit(ctx, completedAs(began.Record.Attempt)); err != nil {
			s.Fatal(err)
		}
		rec, err := s.joined.Get(ctx, id)
		if err != nil || rec.Attempt != began.Record.Attempt || rec.Attempt.Number != 2 || !rec.Created.Equal(began.Record.Created) || rec.Started.Sub(began.Record.Started).Abs() > time.Second {
			s.Errorf("Get() = %+v, %v, want what BeginJoined said: %+v", rec, err, began.Record)
		}
		wantNone("from a completed attempt", runAgain(rec.Attempt), idem.StateCompleted)
		wantNone("of a completed key", joinedRequest(idem.ClientKey), idem.StateCompleted)
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
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, plain := context.Background(), s.joined.connector
		begin := func(key string, req idem.JoinedRequest, removeBefore int) idem.JoinedBegin {
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
		if got := begin("token", joinedRequest(idem.IssuedToken), 1); got.Tx != nil || got.Record.State != idem.StateNone {
			s.Errorf("BeginJoined() of a token that is removed = %+v, want no attempt", got)
		}
		unknown := s.keep(idem.NewKeyID("merchant", "doubt"), idem.StateUnknown)
		if got := begin("doubt", runAgain(unknown.Attempt), 1); got.Tx != nil || got.Record.State != idem.StateNone {
			s.Errorf("BeginJoined() from an attempt that is removed = %+v, want no attempt", got)
		}
		s.keep(idem.NewKeyID("merchant", "released"), idem.StateReleased)
		if got := begin("released", joinedRequest(idem.ClientKey), 2); got.Tx == nil || got.Record.Attempt.Number != 1 {
			s.Errorf("BeginJoined() of a released key that is removed = %+v, want its first attempt", got)
		}
	})
}

func TestJoinedRecordThatCannotBeReadStartsAndDecidesNothing(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		if _, err := s.joined.Issue(ctx, id, time.Hour); err != nil {
			s.Fatal(err)
		}
		mustExec(s, s.pools.write, "UPDATE idem_records SET form = 2")
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			if got, err := s.joined.BeginJoined(ctx, id, joinedRequest(kind)); got.Tx != nil || !errors.Is(err, idem.ErrNewerRecord) {
				s.Errorf("BeginJoined() = %+v, %v, want %v", got, err, idem.ErrNewerRecord)
			}
		}
		if got, err := s.joined.Probe(ctx, id); !errors.Is(err, idem.ErrNewerRecord) {
			s.Errorf("Probe() = %v, %v, want %v", got.State, err, idem.ErrNewerRecord)
		}
		s.wantNothingOpen("after errors")
	})
}

// As long as a transaction has the key, nothing is decided about its COMMIT.
func TestProbeDecidesNothingBesideAnOpenTransaction(t *testing.T) {
	onEachService(t, serviceParts{rewrite: func(p *pools) {
		switch {
		case strings.HasPrefix(p.dsn, "postgres"):
			p.write = open(t, "pgx", p.dsn+"&lock_timeout=100")
		case !strings.Contains(p.dsn, "file:"):
			p.write = open(t, "mysql", p.dsn+"?innodb_lock_wait_timeout=1")
		}
	}}, func(s *service) {
		ctx := context.Background()
		for _, state := range []idem.State{idem.StateNone, idem.StateReleased} {
			id := idem.NewKeyID("merchant", idem.Key(state.String()))
			if state != idem.StateNone {
				s.keep(id, state)
			}
			begin, err := s.joined.BeginJoined(ctx, id, joinedRequest(idem.ClientKey))
			if err != nil || begin.Tx == nil {
				s.Fatalf("BeginJoined() = %+v, %v, want a transaction", begin, err)
			}
			short, cancel := ctx, context.CancelFunc(func() {})
			if s.backend.dialect == SQLite() { // its one connection has no limit of its own
				short, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			if rec, err := s.joined.Probe(short, id); !errors.Is(err, idem.ErrUnavailable) {
				s.Errorf("Probe() of a key that was %v = %v, %v, want %v", state, rec.State, err, idem.ErrUnavailable)
			}
			cancel()
			if err := begin.Tx.Commit(ctx, completedAs(begin.Record.Attempt)); err != nil {
				s.Fatal(err)
			}
			if rec, err := s.joined.Probe(ctx, id); err != nil || rec.State != idem.StateCompleted {
				s.Errorf("Probe() after COMMIT = %v, %v, want completed", rec.State, err)
			}
		}
		if rec, err := s.joined.Probe(ctx, idem.NewKeyID("merchant", "new")); err != nil || rec.State != idem.StateNone {
			s.Errorf("Probe() of a new key = %v, %v, want none", rec.State, err)
		}
		s.wantNothingOpen("after the probes")
	})
}

// The pool for reading may still answer. It decides nothing by itself.
func TestJoinedStoreWithoutItsServerIsUnavailable(t *testing.T) {
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
		session.Close(true)
		begin, began := s.joined.BeginJoined(ctx, id, joinedRequest(idem.ClientKey))
		_, held := s.joined.Held(ctx, id)
		_, probed := s.joined.Probe(ctx, id)
		bound, bind := s.joined.Bind(ctx, id, idem.Fingerprint{Version: 1}, time.Hour)
		for method, err := range map[string]error{"BeginJoined": began, "Held": held, "Probe": probed, "Bind": bind, "Ping": s.joined.Ping(ctx)} {
			if !errors.Is(err, idem.ErrUnavailable) {
				s.Errorf("%s() = %v, want %v", method, err, idem.ErrUnavailable)
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

// The statement that completes the record fails. Then the payment is rolled back too.
func TestJoinedRecordThatCannotBeCompletedRollsBack(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		fail, mend := "CREATE TRIGGER fails BEFORE UPDATE ON idem_records FOR EACH ROW SIGNAL SQLSTATE '45000'", "DROP TRIGGER fails"
		switch s.backend.dialect {
		case PostgreSQL():
			fail = `CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it fails'; END $$;
				CREATE TRIGGER fails BEFORE UPDATE ON idem_records FOR EACH ROW EXECUTE FUNCTION fails()`
			mend += " ON idem_records"
		case SQLite():
			fail = "CREATE TRIGGER fails BEFORE UPDATE ON idem_records BEGIN SELECT RAISE(ABORT, 'it fails'); END"
		}
		mustExec(s, s.pools.write, fail)
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		if told := s.saw(idem.EventReleased); len(told) != 1 || !errors.Is(told[0], idem.ErrRolledBack) || errors.Is(told[0], idem.ErrConflict) {
			s.Errorf("released because of %v, want %v", told, idem.ErrRolledBack)
		}
		if told := s.saw(idem.EventMisused); len(told) != 0 {
			s.Errorf("the developer was told %v, want nothing", told)
		}
		s.wantState("k1", idem.StateNone)
		s.wantNothingOpen("after the failure")
		mustExec(s, s.pools.write, mend)
		s.wantOnePayment("k1")
	})
}

// A payment without its record is not committed, even if a handler has removed that by itself.
func TestJoinedPaymentWithoutItsRecordDoesNotCommit(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		ctx := context.Background()
		begin, err := s.joined.BeginJoined(ctx, idem.NewKeyID("merchant", "k1"), joinedRequest(idem.ClientKey))
		if err != nil || begin.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v", begin, err)
		}
		for _, statement := range []string{"INSERT INTO payments VALUES ('k1', 100)", "DELETE FROM idem_records"} {
			if _, err := begin.Tx.(*joinedTx).tx().Exec(statement); err != nil {
				s.Fatal(err)
			}
		}
		if err := begin.Tx.Commit(ctx, completedAs(begin.Record.Attempt)); !errors.Is(err, idem.ErrEscaped) && !errors.Is(err, idem.ErrSwallowed) {
			s.Errorf("Commit() = %v, want %v or %v", err, idem.ErrEscaped, idem.ErrSwallowed)
		}
		begin.Tx.Release(ctx)
		s.wantPayments(0)
		s.wantNothingOpen("after the release")
	})
}

// What a handler leaves open by its own COMMIT or ROLLBACK ends with its request.
func TestJoinedTransactionEndedByTheHandlerLeavesNothingOpen(t *testing.T) {
	for _, statement := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(statement, func(t *testing.T) {
			onEachService(t, serviceParts{}, func(s *service) {
				for _, status := range []int{201, 402, 500} {
					s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
						_, _ = tx.Exec(statement)
						c.String(status, "done")
						return nil
					}))
					s.pay(fmt.Sprint(status))
					s.wantNothingOpen(fmt.Sprint("after ", status))
				}
			})
		})
	}
}

// lateGuard has a goroutine of the handler do something right before COMMIT.
type lateGuard struct {
	guard
	late func(tx *sql.Tx)
}

func (g lateGuard) commit(ctx context.Context, t *joinedTx) error {
	g.late(t.tx())
	return g.guard.commit(ctx, t)
}

// The client is told what the database has, and nothing is paid twice.
func TestJoinedTransactionEndedByAGoroutineOfTheHandlerRightBeforeCommit(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		plain := s.joined.guard
		s.joined.guard = lateGuard{plain, func(tx *sql.Tx) { _ = tx.Rollback() }}
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantPayments(0)
		s.wantNothingOpen("after a late Rollback")
		s.joined.guard = lateGuard{plain, func(tx *sql.Tx) { _ = tx.Commit() }}
		want := paid
		if s.backend.dialect == SQLite() { // it lets nobody but the middleware commit
			want = refused(503, idem.CodeUnavailable)
		}
		s.want(s.pay("k1"), want)
		s.wantNothingOpen("after a late Commit")
		s.joined.guard = plain
		s.wantOnePayment("k1")
	})
}

// A ROLLBACK into a black hole ends in limited time, and its connection leaves the pool.
func TestJoinedRollbackIntoABlackHoleEnds(t *testing.T) {
	onServers(t, serviceParts{engine: []idem.Option{idem.WithSettleTimeout(200 * time.Millisecond)}}, func(s *service, proxy *testserver.Proxy) {
		text := testserver.Contains("rollback\x00")
		statuses := map[string]int{"k1": 500}
		if s.backend.dialect == MySQL() { // there one follows each COMMIT, too
			text, statuses["k2"] = testserver.Contains("ROLLBACK"), 201
		}
		for key, status := range statuses {
			s.with(s.paying(status))
			hold := proxy.HoldNext(text)
			answered := make(chan answer, 1)
			go func() { answered <- s.pay(key) }()
			select {
			case a := <-answered:
				s.want(a, answer{status: status, body: "paid"})
			case <-time.After(patience / 2):
				s.Errorf("the request that is answered with %d still waits for its ROLLBACK", status)
			}
			hold.Release()
			s.wantNothingOpen("after the black hole")
		}
		s.with(s.paying(http.StatusCreated))
		s.eventually("the retry is paid", func() bool { return s.pay("k1").status == 201 })
		s.wantPayments(len(statuses))
	})
}

// A connection does not go back to the pool if the store cannot tell what is left in it.
func TestBrokenSessionLeavesThePool(t *testing.T) {
	t.Parallel()
	db := freshPostgres(t).write
	for _, broken := range []bool{false, true} {
		s, err := sqlConnector{db}.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Close(broken)
		if n := db.Stats().OpenConnections; n != map[bool]int{false: 1, true: 0}[broken] {
			t.Errorf("Close(broken %t) leaves %d connections", broken, n)
		}
	}
}

// hooklessConnector makes connections of SQLite that cannot refuse commits.
type hooklessConnector struct {
	driver driver.Driver
	dsn    string
}

func (c hooklessConnector) Driver() driver.Driver { return c.driver }

func (c hooklessConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return struct {
		driver.Conn
		driver.ConnBeginTx
		driver.ExecerContext
		driver.QueryerContext
	}{conn, conn.(driver.ConnBeginTx), conn.(driver.ExecerContext), conn.(driver.QueryerContext)}, nil
}

// No handler runs on a driver that cannot refuse its commits.
func TestJoinedOnSQLiteWithoutACommitHookIsUnavailable(t *testing.T) {
	s := startOn(t, SQLite(), serviceParts{rewrite: func(p *pools) {
		plain := p.write.Driver()
		_ = p.write.Close()
		p.write = sql.OpenDB(hooklessConnector{plain, p.dsn})
		p.write.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = p.write.Close() })
	}})
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	if s.runs != 0 {
		t.Error("the handler ran")
	}
	s.wantNothingOpen("after the refusal")
}

// Drivers whose hooks are of other kinds.
type (
	hookWithoutParameter struct{ waitingConn }
	hookOfANumber        struct{ waitingConn }
	hookWithAParameter   struct{ waitingConn }
	hookWithoutResult    struct{ waitingConn }
	hookOfText           struct{ waitingConn }
	hookOfANumberAndText struct{ waitingConn }
)

func (*hookWithoutParameter) RegisterCommitHook()                     {}
func (*hookOfANumber) RegisterCommitHook(int)                         {}
func (*hookWithAParameter) RegisterCommitHook(func(int) int)          {}
func (*hookWithoutResult) RegisterCommitHook(func())                  {}
func (*hookOfText) RegisterCommitHook(func() string)                  {}
func (*hookOfANumberAndText) RegisterCommitHook(func() (int, string)) {}

func (c *hookWithoutParameter) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c *hookOfANumber) Connect(context.Context) (driver.Conn, error)        { return c, nil }
func (c *hookWithAParameter) Connect(context.Context) (driver.Conn, error)   { return c, nil }
func (c *hookWithoutResult) Connect(context.Context) (driver.Conn, error)    { return c, nil }
func (c *hookOfText) Connect(context.Context) (driver.Conn, error)           { return c, nil }
func (c *hookOfANumberAndText) Connect(context.Context) (driver.Conn, error) { return c, nil }

func TestDriverWithACommitHookOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []driver.Connector{new(hookWithoutParameter), new(hookOfANumber), new(hookWithAParameter), new(hookWithoutResult), new(hookOfText), new(hookOfANumberAndText)} {
		db := sql.OpenDB(c)
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := setCommitHook(conn, func() bool { return false }); !errors.Is(err, errNoHook) {
			t.Errorf("setCommitHook() on %T = %v, want %v", c, err, errNoHook)
		}
		_ = conn.Close()
		_ = db.Close()
	}
}

func bodies() (first, second idem.Fingerprint) {
	return idem.Fingerprint{Version: 1, Sum: [32]byte{1}}, idem.Fingerprint{Version: 1, Sum: [32]byte{2}}
}

// bindBoth binds two bodies at once, and wants them to agree. meanwhile runs while both are on their way.
func (s *service) bindBoth(id idem.KeyID, meanwhile func()) {
	s.Helper()
	var fps, bound [2]idem.Fingerprint
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
	count := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%idem_bindings%'"
	if s.backend.dialect == PostgreSQL() {
		count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	}
	s.eventually("statements wait", func() bool {
		var n int
		return s.pools.read.QueryRow(count).Scan(&n) == nil && n == want
	})
}

// The first of three bodies is rolled back, or the time of the one before is over. On MySQL the other
// two meet a deadlock then.
func TestBindingDecidesBetweenTwoBodiesThatHaveWaited(t *testing.T) {
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		waiting := func(first func(tx *sql.Tx) error) {
			t.Helper()
			tx, err := s.pools.read.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if err := first(tx); err != nil {
				t.Fatal(err)
			}
			s.bindBoth(id, func() {
				s.wantWaiting(2)
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			})
		}
		waiting(func(tx *sql.Tx) error {
			_, err := tx.Exec(s.joined.joined.bind, id[:], []byte{}, packFingerprint(idem.Fingerprint{Version: 1, Sum: [32]byte{3}}), time.Hour.Microseconds())
			return err
		})
		mustExec(t, s.pools.write, "UPDATE idem_bindings SET expires = 1")
		waiting(func(tx *sql.Tx) error {
			_, err := tx.Exec("UPDATE idem_bindings SET expires = 2")
			return err
		})
		bound, err := s.joined.Bind(ctx, id, idem.Fingerprint{Version: 1, Sum: [32]byte{4}}, time.Hour)
		if first, second := bodies(); err != nil || bound != first && bound != second {
			t.Errorf("Bind() = %v, %v, want one of the two", bound, err)
		}
	})
}

// Neither a shorter time nor another body changes until when a binding lasts.
func TestBindingIsNotShortenedNorExtendedByAnotherBody(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		ctx, id := context.Background(), idem.NewKeyID("merchant", "k1")
		first, second := bodies()
		bind := func(fp idem.Fingerprint, ttl time.Duration) {
			s.Helper()
			var left int64
			got, err := s.joined.Bind(ctx, id, fp, ttl)
			err = errors.Join(err, s.pools.read.QueryRow(s.joined.names.sql("SELECT expires - {clock} FROM {bindings}")).Scan(&left))
			if lasts := time.Duration(left) * time.Microsecond; err != nil || got != first || lasts > time.Hour || lasts < 50*time.Minute {
				s.Errorf("Bind() for %v = %v, %v, and it lasts for %v, want the first body for an hour", ttl, got, err, lasts)
			}
		}
		bind(first, time.Hour)
		bind(first, time.Minute)
		bind(second, 2*time.Hour)
	})
}

// The database keeps an idle transaction for whole seconds at least as long as its limit.
func TestJoinedIdleLimitIsThatOfTheOption(t *testing.T) {
	const limit = 1500 * time.Millisecond
	onEachService(t, serviceParts{joined: []JoinedOption{WithIdleLimit(limit), nil}}, func(s *service) {
		ctx := context.Background()
		begin, err := s.joined.BeginJoined(ctx, idem.NewKeyID("merchant", "k1"), joinedRequest(idem.ClientKey))
		if err != nil || begin.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v", begin, err)
		}
		defer begin.Tx.Rollback(ctx)
		if left, err := begin.Tx.Check(ctx); err != nil || left != limit {
			s.Errorf("Check() = %v, %v, want %v", left, err, limit)
		}
		setting, want := map[Dialect]string{PostgreSQL(): "SHOW idle_in_transaction_session_timeout", MySQL(): "SELECT @@wait_timeout"}[s.backend.dialect],
			map[Dialect]string{PostgreSQL(): "1500ms", MySQL(): "2"}[s.backend.dialect]
		if setting == "" {
			return
		}
		var got string
		if err := begin.Tx.(*joinedTx).tx().QueryRow(setting).Scan(&got); err != nil || got != want {
			s.Errorf("%s = %q, %v, want %q", setting, got, err, want)
		}
	})
}

// Without its settings a session would commit what follows a deadlock.
func TestJoinedOnMySQLDoesNotBeginWithoutItsSettings(t *testing.T) {
	onMariaDB(t, serviceParts{}, func(s *service) {
		s.joined.guard.(*mysqlGuard).set = "SET SESSION no_such_variable = "
		begin, err := s.joined.BeginJoined(context.Background(), idem.NewKeyID("merchant", "k1"), joinedRequest(idem.ClientKey))
		if begin.Tx != nil || begin.Held || !errors.Is(err, idem.ErrUnavailable) {
			s.Errorf("BeginJoined() = %+v, %v, want %v", begin, err, idem.ErrUnavailable)
		}
		s.wantNothingOpen("after the error")
	})
}

// A request that got no slot leaves its key free.
func TestJoinedKeyThatGotNoSlotIsFree(t *testing.T) {
	s := startOn(t, SQLite(), serviceParts{})
	finish := s.started("k1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	other := idem.NewKeyID("merchant", "k2")
	if _, err := s.joined.BeginJoined(ctx, other, joinedRequest(idem.ClientKey)); !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("BeginJoined() = %v, want %v", err, idem.ErrUnavailable)
	}
	if held, err := s.joined.Held(t.Context(), other); held || err != nil {
		t.Errorf("Held() = %t, %v, want false", held, err)
	}
	s.want(finish(), paid)
	s.want(s.pay("k2"), paid)
}

// A ping tells of a database that cannot be read, also while a handler has the connection for writing.
func TestJoinedPingOnSQLiteTellsOfALostDatabase(t *testing.T) {
	s := startOn(t, SQLite(), serviceParts{})
	finish := s.started("k1")
	_ = s.pools.read.Close()
	if err := s.joined.Ping(t.Context()); !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("Ping() while a handler runs = %v, want %v", err, idem.ErrUnavailable)
	}
	finish()
	if err := s.joined.Ping(t.Context()); !errors.Is(err, idem.ErrUnavailable) {
		t.Errorf("Ping() = %v, want %v", err, idem.ErrUnavailable)
	}
}

func TestTxOutsideOfAnExecution(t *testing.T) {
	t.Parallel()
	_, tx := Tx(t.Context())
	_, session := SessionOf(t.Context())
	if !errors.Is(tx, idem.ErrNoExecution) || !errors.Is(session, idem.ErrNoExecution) {
		t.Errorf("Tx() = %v, SessionOf() = %v, want %v", tx, session, idem.ErrNoExecution)
	}
}

// The leak check of TestMain also sees that nothing of the store goes on.
func TestJoinTellsWhatNewAndNewJoinedRefuse(t *testing.T) {
	p := freshPostgres(t)
	if engine, err := Join(t.Context(), p.write, PostgreSQL()); engine != nil || !errors.Is(err, ErrNotMigrated) {
		t.Errorf("Join() without tables = %v, %v, want %v", engine, err, ErrNotMigrated)
	}
	if err := Migrate(t.Context(), p.write, PostgreSQL()); err != nil {
		t.Fatal(err)
	}
	if engine, err := Join(t.Context(), p.write, PostgreSQL(), idem.WithLockTimeout(-1)); engine != nil || err == nil {
		t.Errorf("Join() with a wrong option = %v, %v, want an error", engine, err)
	}
}

func TestJoinWarnsOfWhatADeveloperShouldSee(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	for _, c := range []struct {
		ev   idem.Event
		want bool
	}{
		{idem.Event{Type: idem.EventRefused, Code: idem.CodeUnavailable}, true},
		{idem.Event{Type: idem.EventRefused, Code: idem.CodeInternal}, true},
		{idem.Event{Type: idem.EventRefused, Code: idem.CodeInProgress}, false},
		{idem.Event{Type: idem.EventReleased, Code: idem.CodeUnavailable}, false},
		{idem.Event{Type: idem.EventMisused, Err: idem.ErrEscaped}, true},
		{idem.Event{Type: idem.EventMisused, Err: idem.ErrSwallowed}, false}, // its refusal warns
	} {
		log.Reset()
		if warn(t.Context(), c.ev); log.Len() > 0 != c.want {
			t.Errorf("warn(%+v) wrote %q, want something: %t", c.ev, log.String(), c.want)
		}
	}
}
