package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	storeredis "github.com/idemkeeper/idemkeeper/tokenstore/redis"
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
	store, err := storeredis.New(ctx, client, storeredis.WithLogger(slog.New(slog.DiscardHandler)))
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
				policy := idem.Policy{Deadline: 100 * time.Millisecond}
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

// The proof that it is the ledger's fence that stops a holder which ignores
// everything else: it does not look at its context, passed every check before
// it lost its session, and writes when its successor has paid.
func TestFenceStopsAHolderThatIgnoresEverything(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	books, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"), ledger.Shared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { books.Close() })
	if err := books.AddMerchant(t.Context(), "merchant_demo"); err != nil {
		t.Fatal(err)
	}
	o := payments.Order{From: "alice", To: "bob", Amount: amount, Currency: "USD", Note: "fenced"}
	policy, err := idem.Policy{Name: "pay", AllowGlobalKeys: true, Resolver: server.LedgerResolver(books, false)}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	operation := idem.Operation{Scope: "merchant_demo", Key: "fenced", Policy: &policy,
		Fingerprint: func(v uint8) (idem.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "fenced") }}
	write := func(ctx context.Context) (idem.Response, error) {
		x, _ := idem.FromContext(ctx)
		p := payments.NewPayment(x.OperationID, o, time.Now())
		return idem.Response{Body: []byte(p.ID)}, books.Pay(context.WithoutCancel(ctx), "merchant_demo", p, x.Fence)
	}

	p := testserver.StartZooKeeperProxy(t, s.zk[0])
	first, next := s.engine(p.Addr()), s.engine(s.zk...)
	checked, wake := make(chan struct{}), make(chan struct{})
	var wrote error
	stubborn := make(chan error, 1)
	go func() {
		_, err := first.Do(context.Background(), operation, func(ctx context.Context) (idem.Response, error) {
			if _, err := idem.CheckOwner(ctx); err != nil {
				return idem.Response{}, err
			}
			close(checked)
			<-wake
			var r idem.Response
			r, wrote = write(ctx)
			return r, wrote
		})
		stubborn <- err
	}()
	happens(t, "check", checked)
	p.BlackHole(testserver.Both)

	var res idem.Result
	eventually(t, "next holder", func() error {
		res, err = next.Do(t.Context(), operation, write)
		return err
	})
	close(wake)
	err = <-stubborn
	if !errors.Is(wrote, payments.ErrFenced) {
		t.Errorf("late write = %v, want %v", wrote, payments.ErrFenced)
	}
	if err != nil && !errors.As(err, new(*idem.Refusal)) {
		t.Errorf("late holder's Do = %v, want the outcome of the next one, or a refusal", err)
	}
	p.Restore()
	eventually(t, "session of the late holder", func() error { return first.Ping(t.Context()) })
	list, err := books.Payments(t.Context(), "merchant_demo", payments.Query{Note: &o.Note, Limit: 10})
	if err != nil || len(list) != 1 || list[0].ID != string(res.Response.Body) {
		t.Errorf("payments = %v, %v, want the one of the next holder, %s", list, err, res.Response.Body)
	}
	if err := books.Audit(t.Context()); err != nil {
		t.Error(err)
	}
	again, err := next.Do(t.Context(), operation, write)
	if err != nil || !again.Replayed || string(again.Response.Body) != string(res.Response.Body) {
		t.Errorf("repeat = %q, replayed %v, %v, want %q replayed", again.Response.Body, again.Replayed, err, res.Response.Body)
	}
}
