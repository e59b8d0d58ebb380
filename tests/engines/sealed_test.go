package engines

import (
	"context"
	"encoding/base64"
	"log/slog"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/enginetest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// An engine in joined mode seals its answers by the option that every set-up takes, and idemctl is told so.
func TestJoinSeals(t *testing.T) {
	t.Parallel()
	_, db := scratch.Database(t, testserver.SharedPostgres(t))
	ring, err := sealed.ParseRing("k1=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	quiet := sqlstore.WithLogger(slog.New(slog.DiscardHandler))
	if engine, err := sqlstore.Join(t.Context(), db.Write, db.Dialect, quiet, sealed.Responses(nil)); engine != nil || err == nil {
		t.Errorf("Join() without a ring = %v, %v, want an error", engine, err)
	}
	key, policy := enginetest.NewKey(), idem.Policy{Name: "pay", AllowGlobalKeys: true}
	for _, opt := range []idem.SetupOption{sealed.Responses(ring), sealed.Responses(ring), nil} {
		engine, err := sqlstore.Join(t.Context(), db.Write, db.Dialect, quiet, opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
		op := idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "100")}
		res, err := engine.Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
			_, err := sqlstore.Tx(ctx)
			return idem.Response{Status: 201, Body: []byte("secret")}, err
		})
		if readable := err == nil && string(res.Response.Body) == "secret"; readable != (opt != nil) {
			t.Errorf("with the option %v: %q, %v", opt != nil, res.Response.Body, err)
		}
	}
	store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, quiet, sqlstore.WithReadOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if declared, err := store.Sealed(t.Context()); err != nil || !declared {
		t.Errorf("Sealed() = %v, %v, want true", declared, err)
	}
}
