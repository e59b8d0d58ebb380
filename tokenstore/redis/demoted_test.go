package redisstore

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A service with one name for the primary moves the name in a fail-over. The old primary lives on as
// a replica, and its connections stay open. Reads and writes share pipelines there.
func TestWritesFollowANameThatMoved(t *testing.T) {
	t.Parallel()
	first, second, client, name := movableRedis(t)
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
					id, _ := newAttempt(driver.ClientKey)
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
					id, req := newAttempt(driver.ClientKey)
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
	follow(t, second, first)
	name.Store(second.Addr())
	do(t, second, "REPLICAOF", "NO", "ONE")
	follow(t, first, second)
	pay()
}

// As above, but the former primary cannot follow the new one. It answers reads with what it had
// when it was demoted, over every connection that was open then.
func TestReadsFollowANameThatMoved(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"inline", strings.Repeat("apart", 1000)} {
		t.Run(body[:5], func(t *testing.T) {
			t.Parallel()
			first, second, client, name := movableRedis(t)
			follow(t, second, first)
			s := open(t, client)
			decided, req := newAttempt(driver.ClientKey)
			attempt := mustBegin(t, s, decided, req)
			unknown := completion(attempt, body)
			unknown.State = driver.StateUnknown
			if res, err := s.Settle(t.Context(), decided, unknown); err != nil || !res.Settled {
				t.Fatalf("Settle() = %v, %v, want settled", res.Settled, err)
			}
			var readers sync.WaitGroup
			for range 20 { // so that several connections are open
				readers.Go(func() { _, _ = s.Get(t.Context(), decided) })
			}
			readers.Wait()
			if err := first.AwaitReplica(second); err != nil {
				t.Fatal(err)
			}
			do(t, second, "REPLICAOF", "NO", "ONE")
			do(t, first, "CONFIG", "SET", "masterauth", "wrong")
			host, port, _ := net.SplitHostPort(second.Addr())
			do(t, first, "REPLICAOF", host, port)
			name.Store(second.Addr())

			elsewhere := open(t, connect(t, second.URL()))
			settled := completion(attempt, body)
			settled.ID = driver.NewNonce()
			if res, err := elsewhere.Settle(t.Context(), decided, settled); err != nil || !res.Settled {
				t.Fatalf("Settle() on the new primary = %v, %v, want settled", res.Settled, err)
			}
			token, _ := newAttempt(driver.IssuedToken)
			if _, err := elsewhere.Issue(t.Context(), token, time.Hour); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[driver.KeyID]driver.State{decided: driver.StateCompleted, token: driver.StateIssued} {
				for range 20 {
					readers.Go(func() {
						if rec, err := s.Get(t.Context(), id); err != nil || rec.State != want {
							t.Errorf("Get() after the move = %v, %v, want %v", rec.State, err, want)
						}
					})
				}
				readers.Wait()
			}
		})
	}
}

func do(tb testing.TB, r *testserver.Redis, command ...string) {
	tb.Helper()
	if _, err := r.Do(command...); err != nil {
		tb.Fatal(err)
	}
}

// follow makes a server the replica of another one.
func follow(tb testing.TB, replica, primary *testserver.Redis) {
	tb.Helper()
	host, port, _ := net.SplitHostPort(primary.Addr())
	do(tb, replica, "REPLICAOF", host, port)
	if err := primary.AwaitReplica(replica); err != nil {
		tb.Fatal(err)
	}
}

// movableRedis starts two servers and a client that dials the one that the name stands for.
func movableRedis(tb testing.TB) (first, second *testserver.Redis, client *goredis.Client, name *atomic.Value) {
	tb.Helper()
	first, second, name = testserver.StartRedis(tb), testserver.StartRedis(tb), new(atomic.Value)
	name.Store(first.Addr())
	client = goredis.NewClient(&goredis.Options{
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, name.Load().(string))
		},
	})
	tb.Cleanup(func() { _ = client.Close() })
	return first, second, client, name
}
