package faults

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// stubborn is a holder that ignores everything: it does not look at its
// context, passed every check before it lost its session, and writes to the
// ledger when it is told to wake up. Another engine is next.
type stubborn struct {
	*testing.T
	*kit.System
	books     *ledger.Ledger
	order     payments.Order
	policy    idem.Policy
	operation idem.Operation
	next      *idem.Engine

	first *idem.Engine
	proxy *testserver.Proxy
	wake  chan struct{}
	wrote error      // by the stubborn one, once it is done
	done  chan error // what its Do returned
}

// newStubborn returns when the holder has passed its last check, and has lost
// ZooKeeper.
func newStubborn(t *testing.T, note string, resolver func(*ledger.Ledger) idem.Resolver) *stubborn {
	t.Helper()
	s := &stubborn{T: t, System: kit.NewSystem(t), wake: make(chan struct{}), done: make(chan error, 1),
		order: payments.Order{From: "alice", To: "bob", Amount: kit.Amount, Currency: "USD", Note: note}}
	var err error
	if s.books, err = ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"), ledger.Shared); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.books.Close() })
	if err := s.books.AddMerchant(t.Context(), "merchant_demo"); err != nil {
		t.Fatal(err)
	}
	if s.policy, err = (idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.AskResolver(resolver(s.books))}).WithDefaults(); err != nil {
		t.Fatal(err)
	}
	s.operation = idem.Operation{Scope: "merchant_demo", Key: "stubborn", Policy: &s.policy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay", note) }}
	s.proxy = testserver.StartZooKeeperProxy(t, s.ZK[0])
	s.first, s.next = engine(s.System, s.proxy.Addr()), engine(s.System, s.ZK...)
	checked := make(chan struct{})
	go func() {
		_, err := s.first.Do(context.Background(), s.operation, func(ctx context.Context) (idem.Response, error) {
			if _, err := idem.CheckOwner(ctx); err != nil {
				return idem.Response{}, err
			}
			close(checked)
			<-s.wake
			var r idem.Response
			r, s.wrote = s.write(ctx)
			return r, s.wrote
		})
		s.done <- err
	}()
	kit.WaitFor(t, "check", checked)
	s.proxy.BlackHole(testserver.Both)
	return s
}

// write pays, as a handler of the sample does.
func (s *stubborn) write(ctx context.Context) (idem.Response, error) {
	x, _ := idem.FromContext(ctx)
	p := payments.NewPayment(x.OperationID, s.order, time.Now())
	return idem.Response{Body: []byte(p.ID)}, s.books.Pay(context.WithoutCancel(ctx), "merchant_demo", p, x.Fence)
}

// resumeAndWait lets the stubborn holder write, and waits until it is done.
func (s *stubborn) resumeAndWait() {
	s.Helper()
	close(s.wake)
	if err := <-s.done; err != nil && !errors.As(err, new(*idem.Refusal)) && !errors.Is(err, payments.ErrFenced) {
		s.Errorf("late holder's Do = %v, want the outcome of the next one, or a refusal", err)
	}
	s.proxy.Restore()
	kit.Eventually(s.T, "session of the late holder", func() error { return s.first.Ping(s.Context()) })
}

// doWithRetries asks the next engine until it answers.
func (s *stubborn) doWithRetries() (res idem.Result) {
	s.Helper()
	kit.Eventually(s.T, "next holder", func() (err error) {
		res, err = s.next.Do(s.Context(), s.operation, s.write)
		return err
	})
	return res
}

func (s *stubborn) payments() []payments.Payment {
	s.Helper()
	list, err := s.books.Payments(s.Context(), "merchant_demo", payments.Query{Note: &s.order.Note, Limit: 10})
	if err = errors.Join(err, s.books.Audit(s.Context())); err != nil {
		s.Fatal(err)
	}
	return list
}

// Context is the test's.
func (s *stubborn) Context() context.Context { return s.T.Context() }

func fencing(l *ledger.Ledger) idem.Resolver { return server.LedgerResolver(l, false) }

// looking is a resolver as one should not be: it looks, and promises what a look
// cannot.
func looking(note string) func(*ledger.Ledger) idem.Resolver {
	return func(l *ledger.Ledger) idem.Resolver {
		return func(ctx context.Context, _ idem.Interrupted) (idem.Resolution, error) {
			list, err := l.Payments(ctx, "merchant_demo", payments.Query{Note: &note, Limit: 1})
			if err != nil || len(list) == 0 {
				return idem.NotApplied(), err
			}
			return idem.Applied(idem.Response{Body: []byte(list[0].ID)}), nil
		}
	}
}

// The proof that it is the ledger's fence that stops a holder which ignores
// everything else: it writes when its successor has paid.
func TestFenceStopsAHolderThatIgnoresEverything(t *testing.T) {
	t.Parallel()
	s := newStubborn(t, "fenced", fencing)
	res := s.doWithRetries()
	s.resumeAndWait()
	if !errors.Is(s.wrote, payments.ErrFenced) {
		t.Errorf("late write = %v, want %v", s.wrote, payments.ErrFenced)
	}
	if list := s.payments(); len(list) != 1 || list[0].ID != string(res.Response.Body) {
		t.Errorf("payments = %v, want the one of the next holder, %s", list, res.Response.Body)
	}
	again, err := s.next.Do(t.Context(), s.operation, s.write)
	if err != nil || !again.Replayed || string(again.Response.Body) != string(res.Response.Body) {
		t.Errorf("repeat = %q, replayed %v, %v, want %q replayed", again.Response.Body, again.Replayed, err, res.Response.Body)
	}
}

// A resolver says that nothing happened, while the holder is only paused, and
// wakes up before anybody tries again. One that has raised the fence has made
// that true. One that has only looked has not: the same money moves twice.
func TestResolverThatOnlyLooksIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		resolver func(*ledger.Ledger) idem.Resolver
		payments int
	}{
		"one that only looks":       {looking("looked-at"), 2},
		"one that raises the fence": {fencing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStubborn(t, "looked-at", tt.resolver)
			kit.Eventually(t, "decision", func() error {
				rec, err := s.next.Resolve(t.Context(), idem.NewKeyID("merchant_demo", "stubborn"), &s.policy)
				if err == nil && rec.State != driver.StateReleased {
					t.Fatalf("Resolve() = %v, want released: nothing has been written", rec.State)
				}
				return err
			})
			s.resumeAndWait()
			s.doWithRetries()
			if list := s.payments(); len(list) != tt.payments {
				t.Errorf("%d payments, want %d: %v", len(list), tt.payments, list)
			}
			if fenced := errors.Is(s.wrote, payments.ErrFenced); fenced != (tt.payments == 1) {
				t.Errorf("late write = %v", s.wrote)
			}
		})
	}
}

// engine makes an engine in this process on the system's servers; hosts may
// lead through a proxy.
func engine(s *kit.System, hosts ...string) *idem.Engine {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), kit.WaitLimit)
	defer cancel()
	zk, err := zookeeper.Open(ctx, zookeeper.Config{Servers: hosts, Chroot: s.Chroot, SessionTimeout: kit.SessionTimeout, TickTime: kit.Tick, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.T.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: s.Redis.Addr(), ContextTimeoutEnabled: true})
	store, err := redisstore.New(ctx, client, redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		s.T.Fatal(err)
	}
	e, err := idem.New(zk.Locker(), store)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), kit.WaitLimit)
		defer cancel()
		if err := errors.Join(e.Close(ctx), zk.Close(ctx), client.Close()); err != nil {
			s.T.Errorf("close the engine: %v", err)
		}
	})
	return e
}
