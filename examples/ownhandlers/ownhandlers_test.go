package ownhandlers

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

const order = `{"to":"bob","amount":1250}`

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	os.Exit(testserver.Main(m))
}

var databases atomic.Int64

// setup makes a database with the table of keys, and one of payments.
func setup(t testing.TB) *sql.DB {
	t.Helper()
	db, _ := setupOn(t, testserver.SharedPostgres(t))
	return db
}

// setupOn is setup on a server, and returns the URL of the database too.
func setupOn(t testing.TB, server string) (*sql.DB, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("ownhandlers_%d_%d", os.Getpid(), databases.Add(1))
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	u.Path = name
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(8)
	t.Cleanup(func() {
		db.Close()
		if _, err := admin.Exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	if err := Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE payments (key text, amount bigint NOT NULL); CREATE TABLE orders (key text PRIMARY KEY, amount bigint, created_at timestamptz)"); err != nil {
		t.Fatal(err)
	}
	return db, u.String()
}

func insert(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO payments (amount) VALUES (1250)")
	return err
}

func wantPayments(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	var got int
	if err := db.QueryRow("SELECT count(*) FROM payments").Scan(&got); err != nil || got != want {
		t.Errorf("%d payments, %v, want %d", got, err, want)
	}
}

// send returns the status and the body.
func send(h gin.HandlerFunc, key, body string) (int, string) {
	router := gin.New()
	router.POST("/pay", h)
	req := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(body))
	req.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	router.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func want(t *testing.T, h gin.HandlerFunc, key, body string, status int, answer string) {
	t.Helper()
	if got, text := send(h, key, body); got != status || !strings.Contains(text, answer) {
		t.Errorf("key %q, body %s: %d %s, want %d %s", key, body, got, text, status, answer)
	}
}

// numbered pays, and each answer differs.
func numbered(db *sql.DB) *Payments {
	var number atomic.Int64
	return &Payments{DB: db, Pay: func(ctx context.Context, tx *sql.Tx, _ []byte) (Answer, error) {
		return Answer{http.StatusCreated, fmt.Appendf(nil, `{"payment":%d}`, number.Add(1))}, insert(ctx, tx)
	}}
}

func TestDuplicatesPayOnce(t *testing.T) {
	t.Parallel()
	db := setup(t)
	p := numbered(db)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() { want(t, p.Handle, "k1", order, http.StatusCreated, `{"payment":1}`) })
	}
	all.Wait()
	wantPayments(t, db, 1)
	want(t, p.Handle, "k2", order, http.StatusCreated, `{"payment":2}`)
	wantPayments(t, db, 2)
}

func TestKeyIsForOneRequest(t *testing.T) {
	t.Parallel()
	db := setup(t)
	p := numbered(db)
	want(t, p.Handle, "k1", order, http.StatusCreated, `{"payment":1}`)
	want(t, p.Handle, "k1", `{"to":"eve"}`, http.StatusUnprocessableEntity, "another request")
	want(t, p.Handle, "", order, http.StatusBadRequest, "missing")
	want(t, p.Handle, strings.Repeat("k", longestKey+1), order, http.StatusBadRequest, "too long")
	want(t, p.Handle, "k3", string(bytes.Repeat([]byte("x"), longestBody+1)), http.StatusBadRequest, "body")
	wantPayments(t, db, 1)
}

func TestFailedPaymentLeavesNoKey(t *testing.T) {
	t.Parallel()
	db := setup(t)
	p := numbered(db)
	pay := p.Pay
	p.Pay = func(ctx context.Context, tx *sql.Tx, order []byte) (Answer, error) {
		_, err := pay(ctx, tx, order)
		return Answer{}, errors.Join(err, errors.New("no such account"))
	}
	want(t, p.Handle, "k1", order, http.StatusInternalServerError, "internal error")
	wantPayments(t, db, 0)
	p.Pay = pay
	want(t, p.Handle, "k1", order, http.StatusCreated, `{"payment":2}`)
	wantPayments(t, db, 1)
}

func TestBankIsCalledOnce(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var calls atomic.Int64
	called, goOn := make(chan string, 1), make(chan struct{})
	p := &BankPayments{
		DB: db,
		Charge: func(_ context.Context, key string, _ []byte) (Answer, error) {
			calls.Add(1)
			called <- key
			<-goOn
			return Answer{http.StatusCreated, []byte(`{"charged":true}`)}, nil
		},
		Record: func(ctx context.Context, tx *sql.Tx, _ []byte, _ Answer) error { return insert(ctx, tx) },
	}
	var first sync.WaitGroup
	first.Go(func() { want(t, p.Handle, "k1", order, http.StatusCreated, "charged") })
	if key := <-called; key != "k1" {
		t.Errorf("the bank got the key %q, want k1", key)
	}
	want(t, p.Handle, "k1", order, http.StatusConflict, "in progress")
	close(goOn)
	first.Wait()
	want(t, p.Handle, "k1", order, http.StatusCreated, "charged")
	want(t, p.Handle, "k1", `{"to":"eve"}`, http.StatusUnprocessableEntity, "another request")
	if n := calls.Load(); n != 1 {
		t.Errorf("the bank was called %d times, want once", n)
	}
	wantPayments(t, db, 1)
}

// This is a limit that README.md names: the bank has to honour the key.
func TestLateRequestCallsTheBankTwiceAndRecordsOnce(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var calls atomic.Int64
	called, goOn := make(chan struct{}), make(chan struct{})
	p := &BankPayments{
		DB: db,
		Charge: func(context.Context, string, []byte) (Answer, error) {
			call := calls.Add(1)
			if call == 1 {
				close(called)
				<-goOn
			}
			return Answer{http.StatusCreated, fmt.Appendf(nil, `{"charge":%d}`, call)}, nil
		},
		Record: func(ctx context.Context, tx *sql.Tx, _ []byte, _ Answer) error { return insert(ctx, tx) },
	}
	var late sync.WaitGroup
	late.Go(func() { want(t, p.Handle, "k1", order, http.StatusConflict, "in progress") })
	<-called
	if _, err := db.Exec("UPDATE idempotency_keys SET locked_at = now() - interval '100 seconds'"); err != nil {
		t.Fatal(err)
	}
	want(t, p.Handle, "k1", order, http.StatusCreated, `{"charge":2}`)
	close(goOn)
	late.Wait()
	want(t, p.Handle, "k1", order, http.StatusCreated, `{"charge":2}`)
	if n := calls.Load(); n != 2 {
		t.Errorf("the bank was called %d times, want twice", n)
	}
	wantPayments(t, db, 1)
}

// A request that failed at the bank frees its key. One that crashed does so after 90 seconds.
func TestBankIsCalledAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	db := setup(t)
	down := errors.New("connection refused")
	p := &BankPayments{
		DB:     db,
		Charge: func(context.Context, string, []byte) (Answer, error) { return Answer{}, down },
		Record: func(ctx context.Context, tx *sql.Tx, _ []byte, _ Answer) error { return insert(ctx, tx) },
	}
	want(t, p.Handle, "k1", order, http.StatusBadGateway, "send the request again")
	for age, status := range map[int]int{80: http.StatusConflict, 100: http.StatusCreated} {
		key := fmt.Sprintf("crashed %d", age)
		req := request{key: key, hash: hashOf([]byte(order))}
		if ok, err := p.claim(t.Context(), req); !ok || err != nil {
			t.Fatalf("claim(%q) = %t, %v", key, ok, err)
		}
		if _, err := db.Exec("UPDATE idempotency_keys SET locked_at = now() - $2 * interval '1 second' WHERE key = $1", key, age); err != nil {
			t.Fatal(err)
		}
		p.Charge = func(context.Context, string, []byte) (Answer, error) {
			return Answer{http.StatusCreated, []byte(`{"charged":true}`)}, nil
		}
		want(t, p.Handle, key, order, status, "")
	}
	want(t, p.Handle, "k1", order, http.StatusCreated, "charged")
	wantPayments(t, db, 2)
}
