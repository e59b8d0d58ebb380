package redisstore

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// A service with one name for the primary moves the name in a fail-over. The old primary lives on as
// a replica, and its connections stay open. Reads and writes share pipelines there.
func TestWritesFollowANameThatMoved(t *testing.T) {
	t.Parallel()
	first, second := testserver.StartRedis(t), testserver.StartRedis(t)
	must := func(r *testserver.Redis, command ...string) {
		t.Helper()
		if _, err := r.Do(command...); err != nil {
			t.Fatal(err)
		}
	}
	follow := func(replica, primary *testserver.Redis) {
		t.Helper()
		host, port, _ := net.SplitHostPort(primary.Addr())
		must(replica, "REPLICAOF", host, port)
		if err := primary.AwaitReplica(replica); err != nil {
			t.Fatal(err)
		}
	}
	var name atomic.Value
	name.Store(first.Addr())
	client := goredis.NewClient(&goredis.Options{
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, name.Load().(string))
		},
	})
	t.Cleanup(func() { client.Close() })
	s := open(t, client)
	pay := func() {
		t.Helper()
		var readers, writers sync.WaitGroup
		over := make(chan struct{})
		for range 8 { // most pipelines begin with a read
			readers.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					id, _ := newAttempt(idem.ClientKey)
					if _, err := s.Get(t.Context(), id); err != nil {
						t.Errorf("Get() = %v, want <nil>", err)
						return
					}
				}
			})
		}
		for range 8 {
			writers.Go(func() {
				for range 10 {
					id, req := newAttempt(idem.ClientKey)
					if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
						t.Errorf("Begin() = %v, %v, want a new attempt", res.Begun, err)
					}
				}
			})
		}
		writers.Wait()
		close(over)
		readers.Wait()
	}
	pay()
	follow(second, first)
	name.Store(second.Addr())
	must(second, "REPLICAOF", "NO", "ONE")
	follow(first, second)
	pay()
}
