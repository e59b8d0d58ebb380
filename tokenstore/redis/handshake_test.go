package redisstore

import (
	"errors"
	"strings"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A server refuses new connections if its password has changed. The client leaves the
// commands of a pipeline without an error then, and without an answer.
func TestCallsFailWhileTheServerRefusesTheHandshake(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	o, err := parseAddr(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.Password = "wrong after a change"
	admin, client := connect(t, server.URL()), goredis.NewUniversalClient(o)
	t.Cleanup(func() { _ = client.Close() })
	do := func(args ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("config", "set", "requirepass", o.Password)
	s := open(t, client)
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
		t.Fatalf("Begin() = %+v, %v", res, err)
	}
	do("config", "set", "requirepass", "another")
	do("client", "kill", "type", "normal", "skipme", "yes")

	var callers sync.WaitGroup
	for range 20 { // they share pipelines
		callers.Go(func() {
			if rec, err := s.Get(t.Context(), id); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("Get() = %v, %v, want the server's refusal", rec, err)
			}
		})
		callers.Go(func() {
			id, req := newAttempt(driver.ClientKey)
			if res, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("Begin() = %v, %v, want the server's refusal", res, err)
			}
		})
	}
	callers.Wait()
}
