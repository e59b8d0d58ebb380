package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// EachKey names the keys of records. Redis has other keys of the store, and may have keys that
// only look like records.
func TestEachKeyNamesRecordsOnly(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	id, req := newAttempt(driver.ClientKey)
	st := completion(mustBegin(t, s, id, req), string(make([]byte, 2*inlineLimit))) // its response has a key of its own
	st.Decision = driver.Decision{By: "ada"}
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatal(err)
	}
	other, _ := newAttempt(driver.ClientKey)
	elsewhere := redisserver.Base("idem", (redisserver.ShardOf(other)+1)%Shards) + other.String()
	if err := m.Set(elsewhere, "x"); err != nil {
		t.Fatal(err)
	}
	if err := m.Set(redisserver.Base("idem", 0)+"nonsense", "x"); err != nil {
		t.Fatal(err)
	}
	var got []driver.KeyID
	if err := s.EachKey(t.Context(), func(id driver.KeyID) bool { got = append(got, id); return true }); err != nil || len(got) != 1 || got[0] != id {
		t.Errorf("EachKey() named %v, %v, want %v", got, err, id)
	}
}

// The error of an ended context is not that of a server.
func TestEachKeyEndsWithItsContext(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.EachKey(ctx, func(driver.KeyID) bool { return true }); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("EachKey() = %v, want %v", err, context.Canceled)
	}
}

// A server that does not tell of replicas is not one without any.
func TestReplicasOfAServerThatDoesNotTell(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()), WithReplicas(2, time.Second))
	if _, wanted, err := s.Replicas(t.Context()); wanted != 2 || !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Replicas() = %d wanted, %v, want 2 and %v", wanted, err, errors.ErrUnsupported)
	}
}
