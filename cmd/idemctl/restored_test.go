package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// ensembleWithBackup is servers whose data can be set back.
type ensembleWithBackup struct {
	connect         string
	backup, restore func()
}

func oneServer(t *testing.T) ensembleWithBackup {
	z := testserver.StartZooKeeper(t)
	var copied string
	return ensembleWithBackup{z.ConnectString(),
		func() { z.Stop(); copied = z.Backup(); z.Restart() },
		func() { z.Stop(); z.Restore(copied); z.Restart() }}
}

// threeServers have had elections since the backup, so their zxids are far above it.
func threeServers(t *testing.T) ensembleWithBackup {
	e := testserver.StartEnsemble(t, 3)
	var copied []string
	return ensembleWithBackup{e.ConnectString(),
		func() { copied = e.Backup(); e.RestartAll(); e.Leader().Restart(); e.Leader() },
		func() { e.Restore(copied); e.Leader() }}
}

// service is one instance of a service.
type service struct {
	*testing.T
	store   driver.Store
	cfg     zookeeper.Config
	renewed atomic.Int32
	paid    atomic.Int32
	policy  idem.Policy
}

func (s *service) open() (*zookeeper.Client, *idem.Engine) {
	s.Helper()
	client, err := zookeeper.Open(s.Context(), s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(client.Abandon)
	engine, err := idem.New(client.Locker(), s.store, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventDomainRenewed {
			s.renewed.Add(1)
		}
	}))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = engine.Close(context.Background()) })
	return client, engine
}

// do sends a request until the answer is not that the ensemble is away.
func (s *service) do(e *idem.Engine, key string, h idem.Handler) (idem.Result, error) {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		res, err := e.Do(s.Context(), idem.Operation{Transport: idem.TransportHTTP, Scope: "m", Key: idem.Key(key), Policy: &s.policy,
			Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "test") }}, h)
		if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != idem.CodeUnavailable || time.Now().After(end) {
			return res, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *service) pay(context.Context) (idem.Response, error) {
	s.paid.Add(1)
	return idem.Response{Status: 201}, nil
}

func (s *service) wantPaid(e *idem.Engine, key string, replayed bool) {
	s.Helper()
	if res, err := s.do(e, key, s.pay); err != nil || res.Response.Status != 201 || res.Replayed != replayed {
		s.Errorf("%s: Do() = %d, replayed %v, %v; want 201, replayed %v", key, res.Response.Status, res.Replayed, err, replayed)
	}
}

// survivor is a client whose session is in the backup, and outlives the time that the servers are away. It
// has given one lock back since the backup, and has taken another one.
type survivor struct {
	*service
	client      *zookeeper.Client
	back, taken driver.Lease
}

func (s *service) livesOn() *survivor {
	s.Helper()
	cfg := s.cfg
	cfg.SessionTimeout = time.Minute
	client, err := zookeeper.Open(s.Context(), cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(client.Abandon)
	return &survivor{s, client, s.locks(client, "given-back"), nil}
}

func (s *survivor) moveOn() {
	s.Helper()
	s.taken = s.locks(s.client, "taken")
	if err := s.back.Release(s.Context()); err != nil {
		s.Fatalf("Release() = %v", err)
	}
}

// wantNothingHeld is after the restore. The session is in the servers' data again, with the lock that it has
// given back and without the other one.
func (s *survivor) wantNothingHeld(another *zookeeper.Client) {
	s.Helper()
	select {
	case <-s.taken.Done():
	case <-time.After(30 * time.Second):
	}
	if err := s.taken.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		s.Fatalf("Err() = %v of a lock that the servers have forgotten, want %v", err, driver.ErrLeaseLost)
	}
	s.locks(another, "given-back").ReleaseInBackground()
}

// locks takes the lock of a key, as soon as the servers are there and it is free.
func (s *service) locks(client *zookeeper.Client, key idem.Key) driver.Lease {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		lease, err := client.Locker().TryAcquire(s.Context(), driver.LockRequest{KeyID: idem.NewKeyID("m", key), Nonce: driver.NewNonce()})
		if err == nil {
			return lease
		}
		if time.Now().After(end) {
			s.Fatalf("TryAcquire(%s) = %v", key, err)
		}
	}
}

// The way out of docs/operations.md, "ZooKeeper came back with older data", step by step.
func TestZooKeeperRestoredFromABackup(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		start func(*testing.T) ensembleWithBackup
		lives bool // an instance runs through all of it
	}{
		"one server":                      {oneServer, false},
		"three servers under an instance": {threeServers, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := tt.start(t)
			store, redis := openStore(t)
			hosts, _, err := zookeeper.ParseConnectString(servers.connect)
			if err != nil {
				t.Fatal(err)
			}
			s := &service{T: t, store: store, cfg: zookeeper.Config{Servers: hosts, SessionTimeout: 6 * time.Second, TickTime: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}}
			if s.policy, err = (idem.Policy{Name: httpRoute, AllowGlobalKeys: true, DuplicateWait: 0, InDoubt: idem.LeaveUnknown()}).WithDefaults(); err != nil {
				t.Fatal(err)
			}
			living, engine := s.open()
			s.wantPaid(engine, "before-the-backup", false)
			was := living.Domain()
			var lived *survivor
			if !tt.lives {
				lived = s.livesOn()
			}
			servers.backup()
			if lived != nil {
				lived.moveOn()
			}

			for i := range 40 {
				s.wantPaid(engine, fmt.Sprint("after-the-backup-", i), false)
			}
			failed := func(ctx context.Context) (idem.Response, error) {
				idem.NoEffect(ctx)
				return idem.Response{Status: 503}, nil
			}
			doubt := func(context.Context) (idem.Response, error) { return idem.Response{Status: 504}, nil }
			if _, err := s.do(engine, "released", failed); err != nil {
				t.Fatal(err)
			}
			if _, err := s.do(engine, "in-doubt", doubt); err != nil {
				t.Fatal(err)
			}
			beginUnder(t, store, living.Locker(), "interrupted")
			if !tt.lives {
				_ = engine.Close(t.Context())
				living.Abandon()
			}
			paid := s.paid.Load()

			// The servers get the older data, and the services start with them.
			servers.restore()
			env := map[string]string{"IDEMCTL_REDIS": redis.URL(), "IDEMCTL_ZOOKEEPER": servers.connect, "IDEMCTL_SESSION_TIMEOUT": "6s", "IDEMCTL_ZOOKEEPER_TICK": "500ms"}
			if !tt.lives {
				examine(t, env).wantFinding(t, "fail", "zookeeper-history", was)
				living, engine = s.open()
			}
			if lived != nil {
				lived.wantNothingHeld(living)
			}
			s.wantPaid(engine, "after-the-restore", false)
			if s.renewed.Load() != 1 || living.Domain() == was {
				t.Errorf("the domain is %s after %d events, want another one than %s after one", living.Domain(), s.renewed.Load(), was)
			}
			s.wantPaid(engine, "before-the-backup", true)
			for i := range 40 {
				s.wantPaid(engine, fmt.Sprint("after-the-backup-", i), true)
			}
			s.wantPaid(engine, "released", false)
			for _, key := range []string{"in-doubt", "interrupted"} {
				if _, err := s.do(engine, key, s.pay); err == nil {
					t.Errorf("%s: the handler ran before the domain was retired", key)
				}
			}
			examine(t, env).wantFinding(t, "ok", "zookeeper-history", "")

			// The operator retires the old domain when its processes have ended.
			awaitAge(t, store, 20*time.Millisecond)
			retired := idemctl(t, env, "store", "retire", was, "--reason", "restored from a backup", "--session-timeout", "2ms", "--zookeeper-tick", "0s")
			if retired.code != 0 || !strings.Contains(retired.stdout, "1 pending records") {
				t.Fatalf("store retire = %+v, want the pending record", retired)
			}
			resolveExits(t, env, 0, "in-doubt", "--not-applied")
			s.wantPaid(engine, "in-doubt", false)
			resolveExits(t, env, 0, "interrupted", "--not-applied")
			if want := paid + 3; s.paid.Load() != want {
				t.Errorf("%d payments, want %d: none twice", s.paid.Load(), want)
			}
		})
	}
}
