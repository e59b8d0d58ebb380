package movetable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
	"github.com/idemkeeper/idemkeeper/idem"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) { paytest.Main(m, nil) }

func TestMoveKeepsAnswersAndPaysOnce(t *testing.T) {
	for name, second := range map[string]http.Handler{"during": During(), "after": After()} {
		t.Run("an old answer is given "+name+" the move", func(t *testing.T) {
			s, before, protect := setup(t)
			moved := protect(second)
			s.Want(paytest.Send(t, before, "k1", 100), 201, false)
			s.Want(paytest.Send(t, moved, "k1", 100), 201, false)
			s.Want(paytest.Send(t, moved, "k1", 100), 201, true)
			s.Want(paytest.Send(t, before, "k2", 5000), 402, false)
			s.Want(paytest.Send(t, moved, "k2", 5000), 402, false)
			s.Want(paytest.Send(t, before, "k3", 100), 201, false)
			s.Want(paytest.Send(t, moved, "k3", 200), 422, false)
			s.WantPayments(100, 100)
		})
	}
	t.Run("a new answer is given by old instances", func(t *testing.T) {
		s, before, protect := setup(t)
		during := protect(During())
		s.Want(paytest.Send(t, during, "k1", 100), 201, false)
		s.Want(paytest.Send(t, before, "k1", 100), 201, false)
		s.Want(paytest.Send(t, during, "k2", 5000), 402, false)
		var stored int
		err := s.Pool.QueryRow(t.Context(), "SELECT count(*) FROM idempotency_keys WHERE status IN (201, 402)").Scan(&stored)
		if err != nil || stored != 2 {
			t.Errorf("the table has %d answers, %v, want 2", stored, err)
		}
		s.Want(paytest.Send(t, before, "k2", 5000), 402, false)
		s.Want(paytest.Send(t, before, "k1", 200), 422, false)
		s.WantPayments(100)
	})
	t.Run("the table can go once its keys have expired", func(t *testing.T) {
		s, before, protect := setup(t)
		moved := protect(During())
		s.Want(paytest.Send(t, before, "k1", 100), 201, false)
		s.Want(paytest.Send(t, moved, "k1", 100), 201, false)
		if _, err := s.Pool.Exec(t.Context(), "DROP TABLE idempotency_keys"); err != nil {
			t.Fatal(err)
		}
		s.Want(paytest.Send(t, moved, "k1", 100), 201, true)
		s.WantPayments(100)
	})
}

// Old and new instances get the same keys at the same moment.
func TestOldAndNewInstancesPayOnce(t *testing.T) {
	s, before, protect := setup(t)
	instances := []http.Handler{before, protect(During()), before, protect(During())}
	var all sync.WaitGroup
	var want []int64
	for k := range 10 {
		want = append(want, 100)
		for _, h := range instances {
			all.Go(func() {
				key := fmt.Sprint("k", k)
				// New instances tell a duplicate to come back while the first one runs.
				for {
					a := paytest.Send(t, h, key, 100)
					if a.Status == 201 {
						return
					}
					if a.Status != 409 && a.Status != 503 {
						t.Errorf("answer = %+v, want 201, or 409 or 503 until the first one has ended", a)
						return
					}
				}
			})
		}
	}
	all.Wait()
	s.WantPayments(want...)
}

// setup returns the handler of an old instance, and the middleware of new ones.
func setup(t *testing.T) (s *paytest.Suite, before http.Handler, protect func(http.Handler) http.Handler) {
	t.Helper()
	s = paytest.Setup(t, "", nil, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, Table)
		return err
	})
	db, err := sql.Open("pgx", s.Pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(8)
	engine, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(engine.Close(context.Background()), db.Close()); err != nil {
			t.Error(err)
		}
	})
	merchant := func(context.Context) (string, error) { return "merchant", nil }
	return s, Before(db), idemhttp.MustNew(engine, idem.Policy{Scope: merchant})
}
