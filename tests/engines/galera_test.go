package engines

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/enginetest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Three instances at a node of Galera get every request at the same time. Each key is paid once, and all give one answer.
func TestGaleraPaysOnce(t *testing.T) {
	t.Parallel()
	_, database := scratch.Database(t, testserver.StartGalera(t).URL())
	db := database.Write
	if _, err := db.Exec("CREATE TABLE payments (id BIGINT AUTO_INCREMENT PRIMARY KEY, paid VARCHAR(64) NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	const insert = "INSERT INTO payments (paid) VALUES (?)"
	for name, setup := range map[string]struct {
		policy idem.Policy
		start  func() (*idem.Engine, error)
		pay    func(ctx context.Context, key idem.Key) error
	}{
		"joined": {idem.Policy{Name: "pay", AllowGlobalKeys: true}, func() (*idem.Engine, error) {
			return sqlstore.Join(t.Context(), db, dialect.MySQL, sqlstore.WithLogger(slog.New(slog.DiscardHandler)), idem.WithConflictRetries(20))
		}, func(ctx context.Context, key idem.Key) error {
			tx, err := sqlstore.Tx(ctx)
			if err == nil {
				_, err = tx.ExecContext(ctx, insert, string(key))
			}
			return err
		}},
		"locks and records": {idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, func() (*idem.Engine, error) {
			return idemsql.New(t.Context(), db, dialect.MySQL, quiet, sqllock.WithTTL(5*time.Second))
		}, func(ctx context.Context, key idem.Key) error {
			_, err := db.ExecContext(ctx, insert, string(key))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var engines []*idem.Engine
			for range 3 {
				engine, err := setup.start()
				for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); { // on a busy machine it may take too long
					engine, err = setup.start()
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = engine.Close(context.Background()) })
				engines = append(engines, engine)
			}
			for range 20 {
				payAtEach(t, db, engines, setup.policy, setup.pay)
			}
		})
	}
}

// payAtEach sends a payment to all engines at once, and again while it is refused for a reason that ends by itself.
func payAtEach(t *testing.T, db *sql.DB, engines []*idem.Engine, policy idem.Policy, pay func(ctx context.Context, key idem.Key) error) {
	t.Helper()
	key, runs := enginetest.NewKey(), atomic.Int64{}
	op := idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "100")}
	answers := make([]string, len(engines))
	var all sync.WaitGroup
	for i, engine := range engines {
		all.Go(func() {
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				res, err := engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
					err := pay(ctx, key)
					return idem.Response{Status: 201, Body: fmt.Append(nil, "payment ", runs.Add(1))}, err
				})
				refusal, refused := errors.AsType[*idem.Refusal](err)
				if again := refused && slices.Contains([]idem.Code{idem.CodeUnavailable, idem.CodeInProgress}, refusal.Code); !again || time.Now().After(deadline) {
					if answers[i] = string(res.Response.Body); err != nil {
						answers[i] = err.Error()
					}
					return
				}
			}
		})
	}
	all.Wait()
	var paid int
	if err := db.QueryRow("SELECT count(*) FROM payments WHERE paid = ?", string(key)).Scan(&paid); err != nil {
		t.Fatal(err)
	}
	if answers = slices.Compact(answers); paid != 1 || len(answers) != 1 || !strings.HasPrefix(answers[0], "payment ") {
		t.Errorf("%d payments and the answers %q, want one of each", paid, answers)
	}
}
