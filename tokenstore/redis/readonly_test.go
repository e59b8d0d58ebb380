package redisstore

import (
	"errors"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// writes lists the writes that a server has seen.
func writes(tb testing.TB, r *testserver.Redis) string {
	tb.Helper()
	stats, err := r.Do("INFO", "commandstats")
	if err != nil {
		tb.Fatal(err)
	}
	var found []string
	for _, text := range stats {
		for line := range strings.Lines(text) {
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
			switch name {
			case "set", "setnx", "del", "hset", "hsetnx", "zadd", "zrem", "lpush", "ltrim":
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(found, " ")
}

func TestReadOnlyStoreWritesNothing(t *testing.T) {
	r := testserver.StartRedis(t)
	w := new(register)
	s := open(t, connect(t, r.URL()), WithReadOnly(), witnessed(w))
	wantNoWrites(t, s)
	id, _ := newAttempt(driver.ClientKey)
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateNone {
		t.Errorf("Get(%v) = %v, %v, want none", id, rec.State, err)
	}
	wantReads(t, s)
	if keys, err := r.Do("KEYS", "*"); err != nil || len(keys) != 0 {
		t.Errorf("KEYS = %v, %v, want none", keys, err)
	}
	if got := writes(t, r); got != "" || w.version != 0 {
		t.Errorf("the store wrote: %s, and %d times to the witness", got, w.version)
	}
}

// wantNoWrites requires that all calls that write are refused.
func wantNoWrites(t *testing.T, s *Store) {
	t.Helper()
	for _, method := range []string{"Issue", "Begin", "Settle", "Abort", "RetireDomain", "NoteFence", "AcceptLoss", "DeclareSealed"} {
		if err := calls[method](t.Context(), s); !errors.Is(err, ErrReadOnly) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() = %v, want %v", method, err, ErrReadOnly)
		}
	}
}

// wantReads requires that reads without a key succeed.
func wantReads(t *testing.T, s *Store) {
	t.Helper()
	for _, method := range []string{"ListOpen", "DomainRetired", "HighestFence", "Decisions", "Sealed", "Ping"} {
		if err := calls[method](t.Context(), s); err != nil {
			t.Errorf("%s() = %v, want <nil>", method, err)
		}
	}
}

func TestReadOnlyStoreSeesWhatOthersKeep(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, client goredis.UniversalClient) {
		prefix := WithPrefix(freshPrefix(t))
		w := new(register)
		early := open(t, client, prefix, WithReadOnly())
		s := open(t, client, prefix, witnessed(w))
		id, req := newAttempt(driver.ClientKey)
		a := mustBegin(t, s, id, req)
		nothing, _ := newAttempt(driver.ClientKey)
		for _, reader := range []*Store{early, open(t, client, prefix, WithReadOnly()), open(t, client, prefix, WithReadOnly(), witnessed(w))} {
			if rec, err := reader.Get(t.Context(), id); err != nil || rec.Attempt != a {
				t.Errorf("Get(%v) = %v, %v, want the attempt", id, rec.Attempt, err)
			}
			if rec, err := reader.Get(t.Context(), nothing); err != nil || rec.State != driver.StateNone {
				t.Errorf("Get(%v) = %v, %v, want none", nothing, rec.State, err)
			}
			page, err := reader.ListOpen(t.Context(), driver.OpenQuery{})
			if list := page.Records; err != nil || len(list) != 1 || list[0].ID != id {
				t.Errorf("Open() = %v, %v, want the record", list, err)
			}
			wantReads(t, reader)
		}
	})
}

// If the witness knows the incarnations, a wiped Redis is a loss. A read-only store does
// not accept it.
func TestReadOnlyStoreTellsOfALoss(t *testing.T) {
	m := startMini(t)
	w := new(register)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client, witnessed(w))
	running := open(t, client, WithReadOnly(), witnessed(w), withRecheck(0))
	alone := open(t, client, WithReadOnly())
	m.FlushAll()
	stores := map[string]*Store{
		"a running one": running, "one that remembers": alone, "a new one": open(t, client, WithReadOnly(), witnessed(w), withRecheck(0)),
	}
	want := func(want error) {
		t.Helper()
		for name, r := range stores {
			id, _ := newAttempt(driver.ClientKey)
			if _, err := r.Get(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("Get() of %s = %v, want %v", name, err, want)
			}
			if err := r.Ping(t.Context()); !errors.Is(err, want) {
				t.Errorf("Ping() of %s = %v, want %v", name, err, want)
			}
		}
	}
	want(driver.ErrStoreLost)
	if n := len(m.Keys()); n != 0 {
		t.Errorf("%d keys are there, want none", n)
	}
	if _, err := s.AcceptLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(stores, "one that remembers") // it has no witness to ask
	want(nil)
}
