package sqlstore_test

import (
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
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
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

// torture sends keys to instances from several clients at once, each until it has a final answer. Two
// clients have the same key. It goes on while more says so of the number of keys.
func torture(t *testing.T, instances []*service, more func(keys int) bool) *history {
	t.Helper()
	h := &history{paid: map[string]map[string]bool{}, final: map[string]string{}}
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 6 {
		clients.Go(func() {
			for {
				n := (next.Add(1) - 1) / 2
				if !more(int(n)) || t.Failed() {
					return
				}
				key := fmt.Sprintf("key-%d", n)
				for began := time.Now(); ; {
					a := instances[rand.IntN(len(instances))].pay(key)
					h.note(key, a)
					if settled(a) {
						break
					}
					if time.Since(began) > 2*patience {
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
	must(t, err)
	defer rows.Close()
	payments, run := map[string]int{}, map[string]string{}
	for rows.Next() {
		var op, body string
		var n int
		must(t, rows.Scan(&op, &n, &body))
		payments[op], run[op] = n, body
	}
	must(t, rows.Err())
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

// levels are the isolation levels of three instances. SQLite has one instance and one level.
var levels = []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable}

// instancesOf starts the other instances of a service, each on the parts of its number.
func instancesOf(s *service, parts func(n int) serviceParts) []*service {
	s.Helper()
	list := []*service{s}
	for n := 1; n < len(levels) && s.backend.dialect != dialect.SQLite; n++ {
		p := parts(n)
		p.pools, p.joined = &s.pools, append(p.joined, sqlstore.WithIsolation(levels[n]))
		list = append(list, startService(s.T, s.backend, p))
	}
	return list
}
