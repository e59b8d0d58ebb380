package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// history is what clients were told, by key.
type history struct {
	mu    sync.Mutex
	paid  map[string]map[string]bool // the bodies of a key's 201
	final map[string]string          // the last answer of a key
}

func (h *history) note(key string, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.status == http.StatusCreated {
		if h.paid[key] == nil {
			h.paid[key] = map[string]bool{}
		}
		h.paid[key][a.body] = true
	}
	h.final[key] = a.String()
}

// settled reports whether an answer is final for a client.
func settled(a answer) bool {
	switch a.code {
	case string(idem.CodeInProgress), string(idem.CodeUnavailable):
		return false
	case "":
		return a.status < 500 || a.replayed
	}
	return true
}

// last is the last answer of a key.
func (h *history) last(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.final[key]
}

// torture sends keys to instances from several clients at once, each until it has a final answer. As
// many clients as sharing says have the same key.
func torture(t *testing.T, instances []*service, keys, sharing int) *history {
	t.Helper()
	h := &history{paid: map[string]map[string]bool{}, final: map[string]string{}}
	var next atomic.Int64
	var clients sync.WaitGroup
	deadline := time.Now().Add(4 * patience)
	for range 6 {
		clients.Go(func() {
			for {
				n := (next.Add(1) - 1) / int64(sharing)
				if n >= int64(keys) {
					return
				}
				key := fmt.Sprintf("key-%d", n)
				for {
					a := instances[rand.IntN(len(instances))].pay(key)
					h.note(key, a)
					if settled(a) {
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("%s was never answered, the last time %v", key, a)
						return
					}
				}
			}
		})
	}
	clients.Wait()
	return h
}

// check compares what clients were told with the ledger.
func (h *history) check(t *testing.T, s *service) {
	t.Helper()
	rows, err := s.pools.read.Query("SELECT op, count(*), min(amount) FROM payments GROUP BY op")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	payments, run := map[string]int{}, map[string]string{}
	for rows.Next() {
		var op, body string
		var n int
		if err := rows.Scan(&op, &n, &body); err != nil {
			t.Fatal(err)
		}
		payments[op], run[op] = n, body
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for key, last := range h.final {
		op := idem.NewKeyID("merchant", idem.Key(key)).OperationID()
		n, bodies := payments[op], h.paid[key]
		if n > 1 {
			t.Errorf("%s was paid %d times, its last answer is %s", key, n, last)
		}
		if len(bodies) > 1 || len(bodies) == 1 && (n != 1 || !bodies["payment "+run[op]]) {
			t.Errorf("%s: clients were told %v, and the ledger has %d payments, the first one %q", key, bodies, n, run[op])
		}
	}
}

// payUniquely writes a payment with a number of this run, and answers with that.
func payUniquely(c *gin.Context, tx *sql.Tx) error {
	x, _ := idem.FromContext(c)
	number := rand.Int64()
	_, err := tx.ExecContext(c.Request.Context(), fmt.Sprintf("INSERT INTO payments (op, amount) VALUES ('%s', %d)", x.OperationID, number))
	if err == nil {
		c.String(http.StatusCreated, "payment %d", number)
	}
	return err
}

func instancesOf(s *service, parts serviceParts, rewrite ...func(*pools)) []*service {
	list := []*service{s}
	for _, f := range rewrite {
		parts.pools, parts.rewrite = &s.pools, f
		list = append(list, startService(s.T, s.backend, parts))
	}
	return list
}

// TestJoinedPaysOnceWhileConnectionsAreCut cuts the connections of three instances at any moment.
func TestJoinedPaysOnceWhileConnectionsAreCut(t *testing.T) {
	parts := serviceParts{engine: []idem.Option{idem.WithSettleTimeout(time.Second)}}
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		proxies := make([]*testserver.Proxy, 3)
		proxies[0] = proxy
		services := instancesOf(s, parts, throughProxy(s.T, &proxies[1]), throughProxy(s.T, &proxies[2]))
		for _, instance := range services {
			instance.with(instance.inTx(payUniquely))
		}
		ctx, stop := context.WithCancel(context.Background())
		var cutter sync.WaitGroup
		cuts := 0
		cutter.Go(func() {
			tick := time.NewTicker(8 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				p := proxies[rand.IntN(3)]
				var fired <-chan struct{}
				switch rand.IntN(4) {
				case 0:
					p.Cut()
					cuts++
					continue
				case 1:
					fired = p.DropNextReply(commitRequest(s))
				case 2:
					fired = p.DropNextRequest(commitRequest(s))
				default:
					fired = p.DropNextReply(testserver.Contains("payments"))
				}
				select {
				case <-fired:
					cuts++
				case <-ctx.Done():
				}
			}
		})
		h := torture(s.T, services, 250, 2)
		stop()
		cutter.Wait()
		h.check(s.T, s)
		s.wantPayments(250)
		if cuts < 20 {
			t.Errorf("%d cuts, want more: the run was too short", cuts)
		}
	})
}

// TestJoinedMisuseNeverPaysTwice has handlers do everything that they must not do, before and after
// they pay, and answer in every way. The clients repeat each key, on three instances.
func TestJoinedMisuseNeverPaysTwice(t *testing.T) {
	type step = func(*gin.Context, *sql.Tx) error
	raw := func(statements ...string) step {
		return func(_ *gin.Context, tx *sql.Tx) error {
			for _, statement := range statements {
				_, _ = tx.Exec(statement) // swallowed
			}
			return nil
		}
	}
	statements := []step{ // of any two of these, one may come before the payment
		raw(),
		raw("COMMIT"), raw("ROLLBACK"), raw("BEGIN"), raw("ROLLBACK", "BEGIN"), raw("COMMIT", "BEGIN"),
		raw("COMMIT AND CHAIN"), raw("END"), raw("SET autocommit = 1"), raw("PREPARE TRANSACTION 'p'"),
		raw("SELECT nothing FROM nowhere"), raw("SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"), raw("RELEASE SAVEPOINT nothing"),
		raw("CREATE TABLE IF NOT EXISTS notes (x INT)"), raw("ANALYZE"), raw("ANALYZE TABLE payments"), raw("LOCK TABLES payments WRITE", "UNLOCK TABLES"),
		raw("INSERT INTO taken VALUES (1)"), raw("INSERT OR ROLLBACK INTO taken VALUES (1)"), raw("SET CONSTRAINTS ALL IMMEDIATE"),
	}
	alone := []step{ // [Joined] names what is not covered if they follow a ROLLBACK
		raw("ROLLBACK AND CHAIN"), raw("DISCARD ALL"), raw("SELECT pg_advisory_unlock_all()"),
		raw("SELECT pg_terminate_backend(pg_backend_pid())"), raw("KILL CONNECTION_ID()"),
		func(_ *gin.Context, tx *sql.Tx) error { return tx.Commit() },
		func(_ *gin.Context, tx *sql.Tx) error { return tx.Rollback() },
		func(c *gin.Context, _ *sql.Tx) error { panic("boom") },
		func(c *gin.Context, _ *sql.Tx) error { idem.KeepWrites(c); return nil },
		func(_ *gin.Context, tx *sql.Tx) error { // leaves rows open
			_, err := tx.Query("SELECT op FROM payments UNION ALL SELECT op FROM payments UNION ALL SELECT 'x'") //nolint:rowserrcheck,sqlclosecheck // that is the misuse
			return err
		},
		func(_ *gin.Context, tx *sql.Tx) error { // a cancelled statement
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_, _ = tx.ExecContext(ctx, "UPDATE payments SET amount = amount")
			return nil
		},
	}
	onEachService(t, serviceParts{}, func(s *service) {
		var left sync.WaitGroup
		late := func(c *gin.Context, tx *sql.Tx) error { // keeps the transaction
			x, _ := idem.FromContext(c)
			left.Go(func() {
				_, _ = tx.Exec(fmt.Sprintf("INSERT INTO late (op) VALUES ('%s')", x.OperationID))
				_ = tx.Commit()
			})
			return nil
		}
		alone := append(alone, late)
		mustExec(s, s.pools.write, "CREATE TABLE late (op VARCHAR(64) NOT NULL)")
		mustExec(s, s.pools.write, "CREATE TABLE taken (x INT PRIMARY KEY)")
		mustExec(s, s.pools.write, "INSERT INTO taken VALUES (1)")
		services := []*service{s}
		if s.backend.dialect != SQLite() {
			services = instancesOf(s, serviceParts{}, nil, nil)
		}
		for _, instance := range services {
			instance.with(instance.inTx(func(c *gin.Context, tx *sql.Tx) error {
				steps := []step{payUniquely}
				if rand.IntN(4) == 0 { // it refuses or fails after it has paid
					steps[0] = func(c *gin.Context, tx *sql.Tx) error {
						err := s.insert(c, tx)
						c.String([]int{402, 500}[rand.IntN(2)], "sorry")
						return err
					}
				}
				if rand.IntN(3) == 0 {
					steps = append(steps, alone[rand.IntN(len(alone))])
				} else {
					steps = append(steps, statements[rand.IntN(len(statements))], statements[rand.IntN(len(statements))])
				}
				rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
				for _, step := range steps {
					_ = step(c, tx) // swallowed
				}
				return nil
			}))
		}
		sharing := 2
		if s.backend.name == throughPgBouncer.name {
			sharing = 1 // there a duplicate may run beside a handler that has sent ROLLBACK
		}
		h := torture(s.T, services, 300, sharing)
		left.Wait()
		h.check(s.T, s)
		if s.backend.dialect == MySQL() {
			s.wantCleanPool()
		}
	})
}
