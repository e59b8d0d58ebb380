package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// engine makes an engine in this process on the system's servers; hosts may
// lead through a proxy.
func (s *system) engine(hosts ...string) *idem.Engine {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	zk, err := zookeeper.Open(ctx, zookeeper.Config{Servers: hosts, Chroot: s.chroot, SessionTimeout: sessionTimeout, TickTime: tick, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: s.redis.Addr(), ContextTimeoutEnabled: true})
	store, err := redisstore.New(ctx, client, redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := idem.New(zk.Locker(), store)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(e.Close(ctx), zk.Close(ctx), client.Close()); err != nil {
			s.t.Errorf("close the engine: %v", err)
		}
	})
	return e
}

// A handler that does not end at its deadline keeps the lock until it has
// returned, for however many sessions that may be.
func TestHandlerThatOutlivesItsDeadlineKeepsTheLock(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known bool
	}{{"and succeeds", true}, {"and does not know", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			overEach(t, func(t *testing.T, via transport) {
				t.Parallel()
				s := newSystem(t)
				late, finish, ran := make(chan struct{}), make(chan struct{}), make(chan int, 10)
				handler := func(ctx context.Context) (string, bool) {
					ran <- 1
					<-ctx.Done()
					close(late)
					<-finish
					return "late", tt.known
				}
				as := func(a answer) bool { return a.paid() && a.payment.ID == "late" }
				if !tt.known {
					as = answer.doubtful
				}
				policy := idem.Policy{HandlerTimeout: 100 * time.Millisecond}
				one, two := serve(t, via, s.engine(s.zk...), policy, handler), serve(t, via, s.engine(s.zk...), policy, handler)
				const key = "late"
				done := one.paying(key, amount, key)
				happens(t, "deadline", late)
				for end := time.Now().Add(sessionTimeout + time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
					inProgress(t, "duplicate there", two, key)
					inProgress(t, "duplicate here", one, key)
				}
				close(finish)
				if a := <-done; !as(a) || a.replayed {
					t.Errorf("answer = %v, want what the handler said", a)
				}
				if a := two.payUntil(patience, key, amount, key); !as(a) || !a.replayed {
					t.Errorf("repeat = %v, want what the handler said, replayed", a)
				}
				if n := len(ran); n != 1 {
					t.Errorf("the handler ran %d times, want once", n)
				}
			})
		})
	}
}

func TestRefusalsThatTheSampleCannotShow(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	e := s.engine(s.zk...)
	overEach(t, func(t *testing.T, via transport) {
		t.Run("key-expired", func(t *testing.T) {
			key := keyOver(via, "short-lived")
			c := serve(t, via, e, idem.Policy{ResultTTL: time.Second, KeyTTL: time.Hour}, func(context.Context) (string, bool) { return key, true })
			if a := c.payUntil(patience, key, amount, ""); !a.paid() {
				t.Fatalf("answer = %v, want it made", a)
			}
			var a answer
			eventually(t, "expiry of the result", func() error {
				if a = c.pay(key, amount, ""); a.paid() && a.replayed || a.is("unavailable") {
					return errNotYet
				}
				return nil
			})
			refused(t, "repeat after the expiry", a, "key-expired")
			refused(t, "another request with it", c.pay(key, amount+1, ""), "key-reused")
		})
		t.Run("result-unavailable", func(t *testing.T) {
			key := keyOver(via, "large")
			c := serve(t, via, e, idem.Policy{MaxResponseBody: 8}, func(context.Context) (string, bool) { return key, true })
			if a := c.payUntil(patience, key, amount, ""); !a.paid() || a.payment.ID != key {
				t.Fatalf("answer = %v, want the whole response", a)
			}
			refused(t, "repeat", c.payUntil(patience, key, amount, ""), "result-unavailable")
		})
	})
	// A unary call has nothing to flush.
	t.Run("result-unavailable of a stream over HTTP", func(t *testing.T) {
		c := serveHTTP(t, e, idem.Policy{}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"id":`)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush = %v", err)
			}
			fmt.Fprint(w, `"streamed"}`)
		})
		if a := c.payUntil(patience, "streamed", amount, ""); a.payment.ID != "streamed" {
			t.Fatalf("answer = %v, want the whole stream", a)
		}
		refused(t, "repeat", c.payUntil(patience, "streamed", amount, ""), "result-unavailable")
	})
}
