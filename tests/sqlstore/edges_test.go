package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// someConnector is a connector of another package.
type someConnector struct{ sqlstore.Connector }

func (someConnector) Size() int { return 5 }

func TestWrongCallsAreRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := freshSQLite(t)
	must(t, sqlstore.Migrate(ctx, p.write, dialect.SQLite))
	s := onSQLite.store(t, p, sqlstore.WithExpiry(0))
	attempt := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce()}
	settle := func(change func(*driver.Settlement)) error {
		st := driver.Settlement{Attempt: attempt, ID: attempt.Nonce, State: driver.StateUnknown, ResultTTL: time.Hour, KeyTTL: time.Hour}
		change(&st)
		_, err := s.Settle(ctx, idem.NewKeyID("m", "k"), st)
		return err
	}
	unreachable, err := sqlstore.OpenStrict("pgx", "postgres://127.0.0.1:1/none")
	must(t, err)
	defer unreachable.Close()
	closed := open(t, "sqlite", p.dsn)
	must(t, closed.Close())
	for what, tt := range map[string]struct {
		err  error
		want string
	}{
		"no domain":                      {s.RetireDomain(ctx, "", driver.Decision{By: "ada"}), "no domain"},
		"a long reason to retire":        {s.RetireDomain(ctx, "d", driver.Decision{By: "ada", Reason: strings.Repeat("x", maxReason+1)}), "at most"},
		"completed without a response":   {settle(func(st *driver.Settlement) { st.State = driver.StateCompleted }), "without a response"},
		"settled as pending":             {settle(func(st *driver.Settlement) { st.State = driver.StatePending }), "state pending"},
		"a long reason to settle":        {settle(func(st *driver.Settlement) { st.Decision.Reason = strings.Repeat("x", maxReason+1) }), "at most"},
		"joined with a short idle limit": {errOf(s.Joined(sqlstore.WithIdleLimit(time.Millisecond))), "1s or more"},
		"joined past database/sql":       {errOf(s.JoinedOver(someConnector{})), "are for PostgreSQL"},
		"rights of no role":              {errOf(sqlstore.Grants(ctx, p.write, dialect.PostgreSQL, sqlstore.RoleReader+1, "ada")), "no role"},
		"a plan from no version":         {errOf(sqlstore.PlanFrom(-1, dialect.SQLite)), "want 0 to"},
		"a pooler before a closed pool":  {errOf(sqlstore.BehindPooler(ctx, closed)), "closed"},
		"strict with an unknown driver":  {errOf(sqlstore.OpenStrict("none", "")), "unknown driver"},
		"strict with a wrong name":       {errOf(sqlstore.OpenStrict("mysql", "none")), "DSN"},
		"strict without a server":        {unreachable.PingContext(ctx), "127.0.0.1:1"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", what, tt.err, tt.want)
		}
	}
}

// While a handler has the one connection for writing, a joined store on SQLite can be asked all the same.
func TestJoinedOnSQLiteAnswersWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.SQLite, serviceParts{})
	ctx, j := t.Context(), s.joined
	if domain, err := j.DomainOf(ctx, idOf("k1")); domain != driver.JoinedDomain || err != nil {
		t.Errorf("DomainOf() = %q, %v", domain, err)
	}
	look := func(when string, want bool) {
		t.Helper()
		if err := j.Ping(ctx); err != nil {
			t.Errorf("%s: Ping() = %v", when, err)
		}
		if _, held, err := j.HeldBy(ctx, idOf("k1")); held != want || err != nil {
			t.Errorf("%s: HeldBy() = %v, %v, want %v", when, held, err, want)
		}
	}
	look("before", false)
	finish := s.started("k1")
	look("while a handler runs", true)
	if again, err := j.BeginJoined(ctx, idOf("k1"), joinedRequest(driver.ClientKey)); err != nil || !again.Held {
		t.Errorf("BeginJoined() of a held key = %+v, %v, want held", again, err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := j.BeginJoined(short, idOf("other"), joinedRequest(driver.ClientKey)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("BeginJoined() without a free connection = %v, want %v", err, driver.ErrUnavailable)
	}
	if held, err := j.Held(ctx, idOf("other")); held || err != nil {
		t.Errorf("Held() of the key that got no connection = %v, %v, want false", held, err)
	}
	finish()
	look("after", false)

	finish = s.started("k2")
	_ = s.pools.read.Close()
	for range 2 {
		if err := j.Ping(ctx); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Ping() of a lost database = %v, want %v", err, driver.ErrUnavailable)
		}
		finish()
	}
}
