package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The order of decisions does not depend on the clock, which may stand still or step back. That of SQLite stands still for a
// millisecond. A settlement that is sent twice is one decision.
func TestDecisionsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t))
		id, a := begin(t, s, "decided")
		want := []string{"alice", "bob", "alice", "carol"}
		for _, by := range want {
			st := driver.Settlement{Attempt: a, ID: driver.NewNonce(), State: driver.StateUnknown, Decision: driver.Decision{By: by, Reason: "looked"}}
			for range 2 {
				if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled {
					t.Fatalf("Settle() by %s = %v, %v, want settled", by, res.Settled, err)
				}
			}
			mustExec(t, s.write, s.sql("UPDATE {decisions} SET decided = decided + 1000000")) // the clock steps back
		}
		list, err := s.Decisions(t.Context(), id)
		var by []string
		for _, d := range slices.Backward(list) {
			by = append(by, d.By)
		}
		if err != nil || !slices.Equal(by, want) {
			t.Errorf("Decisions() = %+v, %v, want %v, the newest first", list, err, want)
		}
	})
}

func TestSealed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t))
		if sealed, err := s.Sealed(t.Context()); sealed || err != nil {
			t.Errorf("Sealed() = %v, %v, want false", sealed, err)
		}
		for range 2 {
			if err := s.DeclareSealed(t.Context()); err != nil {
				t.Errorf("DeclareSealed() = %v, want <nil>", err)
			}
		}
		if sealed, err := s.Sealed(t.Context()); !sealed || err != nil {
			t.Errorf("Sealed() = %v, %v, want true", sealed, err)
		}
	})
}

// A note that cannot be made is an error, also where none was there to be raised.
func TestFenceThatCannotBeNotedIsAnError(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	mustExec(t, p.write, "CREATE TRIGGER fails BEFORE INSERT ON idem_notes BEGIN SELECT RAISE(ABORT, 'it fails'); END")
	if err := s.NoteFence(t.Context(), driver.Fence{Domain: "test", Token: 1}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("NoteFence() that makes no note = %v, want %v", err, driver.ErrUnavailable)
	}
}

func TestWithReadOnly(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		id, _ := begin(t, b.store(t, p), "there")
		s := b.store(t, p, sqlstore.WithReadOnly())
		for name, call := range calls(s, id) {
			err := call(t.Context())
			if reads[name] || name == "Ping" {
				if err != nil {
					t.Errorf("%s() = %v, want <nil>", name, err)
				}
				continue
			}
			if !errors.Is(err, sqlstore.ErrReadOnly) {
				t.Errorf("%s() = %v, want %v", name, err, sqlstore.ErrReadOnly)
			}
		}
		if page, err := s.ListOpen(t.Context(), driver.OpenQuery{}); err != nil || len(page.Records) != 1 {
			t.Errorf("ListOpen() = %+v, %v, want the record", page, err)
		}
		good := b.store(t, p)
		done := key(1)
		completed(t, good, done)
		standby := b.store(t, b.readOnly(t, p), sqlstore.WithReadOnly())
		if err := standby.Ping(t.Context()); err != nil {
			t.Errorf("Ping() of a database that accepts no writes = %v, want <nil>", err)
		}
		if rec, err := standby.Get(t.Context(), done); err != nil || rec.State != driver.StateCompleted {
			t.Errorf("Get() from a database that accepts no writes = %v, %v, want completed", rec.State, err)
		}
	})
}

func TestWrongOptions(t *testing.T) {
	t.Parallel()
	db := freshSQLite(t).write
	for name, tt := range map[string]struct {
		dialect dialect.Dialect
		opts    []sqlstore.Option
		want    string
	}{
		"no dialect":          {"", nil, "such as dialect.PostgreSQL"},
		"a schema in SQLite":  {dialect.SQLite, []sqlstore.Option{sqlstore.WithSchema("x")}, "no schemas"},
		"a quote in a schema": {dialect.PostgreSQL, []sqlstore.Option{sqlstore.WithSchema(`x"; DROP TABLE y; --`)}, "letters, digits and underscores"},
		"a quote in a prefix": {dialect.MySQL, []sqlstore.Option{sqlstore.WithTablePrefix("x`")}, "letters, digits and underscores"},
		"a long schema":       {dialect.PostgreSQL, []sqlstore.Option{sqlstore.WithSchema(strings.Repeat("x", 64))}, "at most 63"},
		"a long prefix":       {dialect.PostgreSQL, []sqlstore.Option{sqlstore.WithTablePrefix(strings.Repeat("x", 48))}, "at most 47"},
		"no prefix":           {dialect.PostgreSQL, []sqlstore.Option{sqlstore.WithTablePrefix("")}, "letters"},
		"expiry":              {dialect.PostgreSQL, []sqlstore.Option{sqlstore.WithExpiry(-1)}, "0 or more"},
	} {
		if _, err := sqlstore.New(t.Context(), db, tt.dialect, tt.opts...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New() = %v, want %q", name, err, tt.want)
		}
		if err := sqlstore.Migrate(t.Context(), db, tt.dialect, tt.opts...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Migrate() = %v, want %q", name, err, tt.want)
		}
	}
	if _, err := sqlstore.New(t.Context(), nil, dialect.SQLite); err == nil {
		t.Error("New() without a database = <nil>")
	}
}

// Texts that are too long for a column are refused before the database sees them. MySQL would
// cut them if it is not strict.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t))
		long := strings.Repeat("x", maxText+1)
		id, a := begin(t, s, "texts")
		longRoute, longDomain, longReason := request(5), request(5), settlementOf(a, "alice")
		longRoute.Route, longDomain.Fence.Domain, longReason.Decision.Reason = long, long, strings.Repeat("x", maxReason+1)
		toRoute, toDomain := settlementOf(a, ""), settlementOf(a, "")
		toRoute.Repair = &driver.Repair{Route: long}
		toDomain.Repair = &driver.Repair{Replaced: driver.Replaced{Attempt: driver.Attempt{Fence: driver.Fence{Domain: long}}}}
		for name, err := range map[string]error{
			"Begin() with a long route": errOf(s.Begin(t.Context(), key(1), longRoute)), "Begin() with a long domain": errOf(s.Begin(t.Context(), key(1), longDomain)),
			"Settle() with a long reason": errOf(s.Settle(t.Context(), id, longReason)), "Settle() with a repair of a long route": errOf(s.Settle(t.Context(), id, toRoute)),
			"Settle() with a repair of a long domain": errOf(s.Settle(t.Context(), id, toDomain)),
		} {
			if err == nil || errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%s = %v, want a refusal", name, err)
			}
		}
		if err := s.RetireDomain(t.Context(), long[:maxText], driver.Decision{By: "alice", Reason: strings.Repeat("x", maxReason)}); err != nil {
			t.Errorf("RetireDomain() with the longest reason = %v, want <nil>", err)
		}
		longReason.Decision = driver.Decision{By: long[:maxText], Reason: strings.Repeat("ü", maxReason/2)}
		if err := callSettle(t.Context(), s, id, longReason); err != nil {
			t.Errorf("Settle() with the longest texts = %v, want <nil>", err)
		}
		if rec, err := s.Get(t.Context(), id); err != nil || rec.Decision != longReason.Decision {
			t.Errorf("Get() = %v, %v, want the longest texts", rec.Decision, err)
		}
	})
}

// Texts may be any bytes, and texts that a collation would take for equal differ.
func TestTextsAreBytes(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t))
		domains := []string{"abc", "ABC", "abc ", "abc\x00", "\xff\xfe", "äbc", "a'b\"c\\`?$1"}
		for i, d := range domains {
			if err := s.RetireDomain(t.Context(), d, driver.Decision{By: "\xffalice\x00", Reason: d}); err != nil {
				t.Errorf("RetireDomain(%q) = %v", d, err)
			}
			for j, other := range domains {
				if got, err := s.DomainRetired(t.Context(), other); got != (j <= i) || err != nil {
					t.Errorf("DomainRetired(%q) after %q = %v, %v, want %v", other, d, got, err, j <= i)
				}
			}
			req := request(uint64(i) + 1)
			req.Route, req.Fence.Domain = d, d
			if _, err := s.Begin(t.Context(), key(i), req); err != nil {
				t.Errorf("Begin() with %q = %v", d, err)
			}
			if rec, err := s.Get(t.Context(), key(i)); err != nil || rec.Route != d || rec.Attempt.Fence != req.Fence {
				t.Errorf("Get() = %q, %v, %v, want %q", rec.Route, rec.Attempt.Fence, err, d)
			}
		}
	})
}
