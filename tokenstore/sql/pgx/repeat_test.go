package pgxstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A repeat of a payment is answered although other payments have all transactions of the pool, and then it neither
// locks the key nor keeps a transaction open.
func TestRepeatWaitsForNoOtherPayment(t *testing.T) {
	l := setup(t, idem.WithLockTimeout(time.Hour))
	res, err := l.pay("paid", answers(201))
	l.want(res, err, 201, false)
	res, err = l.pay("paid", answers(500)) // with a free transaction
	l.want(res, err, 201, true)

	most := l.through.Size() - 1
	busy, free := make(chan struct{}, most), make(chan struct{})
	var wg sync.WaitGroup
	for n := range most {
		wg.Go(func() {
			res, err := l.pay(fmt.Sprint("other", n), func(context.Context, pgx.Tx) (int, error) {
				busy <- struct{}{}
				<-free
				return 201, nil
			})
			l.want(res, err, 201, false)
		})
	}
	for range most {
		<-busy
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		res, err := l.pay("paid", answers(500))
		l.want(res, err, 201, true)
	}()
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("the repeat waits")
	}
	close(free)
	<-answered
	wg.Wait()
	l.wantPayments(1 + most)
	var locks int
	must(t, l.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks))
	if locks != 0 {
		t.Errorf("%d locks are left, want none", locks)
	}
}

// Repeats are answered while nothing can be written, as while an index of the table is built.
func TestRepeatIsAnsweredWhileNothingCanBeWritten(t *testing.T) {
	l := setup(t, idem.WithLockTimeout(2*time.Second))
	res, err := l.pay("paid", answers(201))
	l.want(res, err, 201, false)
	tx, err := l.pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "LOCK TABLE idem_records IN SHARE MODE")
	must(t, err)
	res, err = l.pay("paid", answers(500))
	l.want(res, err, 201, true)
	_, err = l.pay("new", answers(201))
	l.wantRefused(err, idem.CodeUnavailable, nil)
}

// A database that its administrator has made read-only gets no payment, and still answers repeats.
func TestReadOnlyDatabaseGetsNoPayment(t *testing.T) {
	l := setup(t)
	res, err := l.pay("paid", answers(201))
	l.want(res, err, 201, false)
	mustExec(t, l.pool, "ALTER DATABASE "+l.pool.Config().ConnConfig.Database+" SET default_transaction_read_only = on")
	l.proxy.Cut() // new sessions have the setting
	for deadline := time.Now().Add(patience); ; {
		res, err = l.pay("paid", answers(500))
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	l.want(res, err, 201, true)
	_, err = l.pay("new", answers(201))
	l.wantRefused(err, idem.CodeUnavailable, nil)
	l.wantPayments(1)
}
