package sealed_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// joinedBench is a joined store on SQLite, with a table for the handler.
type joinedBench struct {
	*testing.T
	db    *database.DB
	inner *sqlstore.Joined
}

func newJoinedBench(t *testing.T) *joinedBench {
	t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(t.TempDir(), "x.db"), database.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect); err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, append(db.StoreOptions(), sqlstore.WithSoleProcess())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b := &joinedBench{T: t, db: db}
	if b.inner, err = store.Joined(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Write.Exec("CREATE TABLE payments (note TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return b
}

func ringFor(t *testing.T, ids ...string) *sealed.Ring {
	t.Helper()
	var pairs []string
	for _, id := range ids {
		key := make([]byte, 32)
		_, _ = rand.Read(key)
		pairs = append(pairs, id+"="+base64.StdEncoding.EncodeToString(key))
	}
	ring, err := sealed.ParseRing(strings.Join(pairs, ","))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

const secret = "the answer of the bank"

// do pays under a key, with the ring's engine of its own.
func (b *joinedBench) do(ring *sealed.Ring, key idem.Key, status int) (idem.Result, error) {
	b.Helper()
	store, err := sealed.NewJoined(b.inner, ring)
	if err != nil {
		b.Fatal(err)
	}
	engine, err := idem.NewJoined(store)
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close(b.Context())
	p, err := idem.Policy{AllowGlobalKeys: true, Name: "pay"}.WithDefaults()
	if err != nil {
		b.Fatal(err)
	}
	return engine.Do(b.Context(), idem.Operation{Key: key, Policy: &p, Transport: idem.TransportHTTP,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay") },
	}, func(ctx context.Context) (idem.Response, error) {
		tx, err := sqlstore.Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO payments (note) VALUES ('paid')")
		return idem.Response{Status: status, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: []byte(secret)}, err
	})
}

// begin opens the transaction of an attempt.
func (b *joinedBench) begin(ring *sealed.Ring, key idem.Key) driver.JoinedBegin {
	b.Helper()
	store, err := sealed.NewJoined(b.inner, ring)
	if err != nil {
		b.Fatal(err)
	}
	begin, err := store.BeginJoined(b.Context(), idem.NewKeyID("", key), driver.JoinedRequest{Route: "pay", Nonce: driver.NewNonce(), ResultTTL: time.Hour})
	if err != nil {
		b.Fatalf("BeginJoined(%s) = %v", key, err)
	}
	return begin
}

// Answers that commit with a payment, and answers that are stored after its rollback, are
// sealed and opened.
func TestJoinedResponsesAreSealed(t *testing.T) {
	t.Parallel()
	b := newJoinedBench(t)
	ring := ringFor(t, "k1")
	for status, paid := range map[int]int{201: 1, 402: 0} {
		key := idem.Key("key" + string(rune('a'+paid)))
		for _, replayed := range []bool{false, true} {
			res, err := b.do(ring, key, status)
			if err != nil || res.Replayed != replayed || res.Response.Status != status || string(res.Response.Body) != secret {
				t.Errorf("Do(%s) = %+v, %v, want %d %q, replayed: %v", key, res, err, status, secret, replayed)
			}
		}
		var stored []byte
		id := idem.NewKeyID("", key)
		if err := b.db.Read.QueryRow("SELECT response FROM idem_records WHERE k = ?", id[:]).Scan(&stored); err != nil || bytes.Contains(stored, []byte(secret)) || !bytes.Contains(stored, []byte("k1")) {
			t.Errorf("stored %q, %v, want it sealed under k1", stored, err)
		}
		if _, err := b.do(ringFor(t, "k2"), key, status); code(err) != idem.CodeUnavailable || !errors.Is(err, sealed.ErrUnreadable) {
			t.Errorf("Do(%s) with another ring = %v, want unavailable", key, err)
		}
	}
	var n int
	if err := b.db.Read.QueryRow("SELECT count(*) FROM payments").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d payments, %v, want 1", n, err)
	}
}

// Probe opens the record for a client whose COMMIT had no answer, and so does a second attempt, which gets no transaction.
func TestJoinedAnswersAreOpened(t *testing.T) {
	t.Parallel()
	b := newJoinedBench(t)
	ring := ringFor(t, "k1")
	if _, err := b.do(ring, "k", 201); err != nil {
		t.Fatal(err)
	}
	store, err := sealed.NewJoined(b.inner, ring)
	if err != nil {
		t.Fatal(err)
	}
	id := idem.NewKeyID("", "k")
	rec, err := store.Probe(t.Context(), id)
	if err != nil || rec.State != driver.StateCompleted || string(rec.Response.Body) != secret {
		t.Errorf("Probe() = %+v, %v, want the opened answer", rec, err)
	}
	if begin := b.begin(ring, "k"); begin.Tx != nil || begin.Record.Response == nil || string(begin.Record.Response.Body) != secret {
		t.Errorf("BeginJoined() = %+v, want the opened answer and no transaction", begin)
	}
	if held, err := store.Held(t.Context(), id); held || err != nil {
		t.Errorf("Held() = %v, %v, want false", held, err)
	}
	first := driver.Fingerprint{Version: 1, Sum: [32]byte{1}}
	for _, fp := range []driver.Fingerprint{first, {Version: 1, Sum: [32]byte{2}}} {
		if bound, err := store.Bind(t.Context(), id, fp, time.Hour); err != nil || bound != first {
			t.Errorf("Bind(%v) = %v, %v, want the first binding", fp, bound, err)
		}
	}
}

func code(err error) idem.Code {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r.Code
	}
	return ""
}

// A response that cannot be sealed is not committed, so the engine can commit without it.
func TestJoinedResponseThatCannotBeSealed(t *testing.T) {
	t.Parallel()
	b := newJoinedBench(t)
	begin := b.begin(ringFor(t, "k1"), "k")
	if begin.Tx == nil {
		t.Fatalf("BeginJoined() = %+v, want a transaction", begin)
	}
	defer begin.Tx.Release(t.Context())
	st := driver.Settlement{Attempt: begin.Record.Attempt, ID: begin.Record.Attempt.Nonce, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour,
		Response: &driver.Response{Header: map[string][]string{"X": make([]string, 5000)}}}
	if err := begin.Tx.Commit(t.Context(), st); !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Commit(5000 values) = %v, want %v", err, driver.ErrResponseInvalid)
	}
	st.Response = &driver.Response{Status: 201, Omitted: true}
	if err := begin.Tx.Commit(t.Context(), st); err != nil {
		t.Errorf("Commit(omitted) = %v, want <nil>", err)
	}
}
