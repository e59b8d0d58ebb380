package sqlstore

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// TestJoinPaysOnceAndWarnsOfMisuse also has the leak check of TestMain see that closing the engine
// closes the store.
// It uses the default logger, so it is not parallel to other tests.
func TestJoinPaysOnceAndWarnsOfMisuse(t *testing.T) {
	for _, b := range backends() { // in turn, because they share the default logger
		if b.dialect == dialect.SQLite {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			var log bytes.Buffer
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
			defer slog.SetDefault(before)
			p := b.migrated(t)
			mustExec(t, p.write, "CREATE TABLE payments (op VARCHAR(64) NOT NULL, amount BIGINT NOT NULL)")
			engine, err := Join(t.Context(), p.write, b.dialect)
			if err != nil {
				t.Fatalf("Join() = %v, want <nil>", err)
			}
			log.Reset() // of what New says about a server for tests
			defer func() {
				if err := engine.Close(context.Background()); err != nil {
					t.Errorf("Close() = %v", err)
				}
			}()
			policy := idem.Policy{Name: "pay", AllowGlobalKeys: true}
			pay := func(key string, h idem.Handler) (idem.Result, error) {
				op := idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: &policy,
					Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}
				return engine.Do(t.Context(), op, h)
			}
			created := idem.Response{Status: 201, Body: []byte("paid")}
			for _, replayed := range []bool{false, true} {
				res, err := pay("k1", func(ctx context.Context) (idem.Response, error) {
					tx, err := Tx(ctx)
					if err == nil {
						_, err = tx.ExecContext(ctx, "INSERT INTO payments VALUES ('k1', 100)")
					}
					return created, err
				})
				if err != nil || res.Response.Status != 201 || res.Replayed != replayed {
					t.Errorf("Do() = %+v, %v, want 201, replayed %t", res, err, replayed)
				}
			}
			if log.Len() > 0 {
				t.Errorf("the log has %q, want nothing", log.String())
			}
			_, _ = pay("k2", func(context.Context) (idem.Response, error) { return created, nil })
			if !strings.Contains(log.String(), idem.ErrNotTaken.Error()) || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("the log has %q, want one line with %q", log.String(), idem.ErrNotTaken)
			}
		})
	}
}
