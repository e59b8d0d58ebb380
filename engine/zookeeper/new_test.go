package idemzk_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	"github.com/idemkeeper/idemkeeper/internal/test/enginetest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // they mostly wait for the servers
	goleak.VerifyTestMain(testserver.M{M: m})
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

// site has an ensemble and a Redis.
type site struct {
	ensemble zookeeper.Config
	client   goredis.UniversalClient
	redis    *testserver.Redis
}

// newSite has a chroot, and a Redis that loses what a test wants it to lose.
func newSite(t *testing.T) *site {
	t.Helper()
	redis := testserver.StartRedis(t)
	return &site{ensemble: ensemble(t), client: connect(t, redis.URL()), redis: redis}
}

func ensemble(t *testing.T) zookeeper.Config {
	t.Helper()
	return zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t), Logger: slog.New(slog.DiscardHandler)}
}

func connect(t *testing.T, url string) goredis.UniversalClient {
	t.Helper()
	client, err := redisstore.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// open starts an instance, which ends with the test.
func (s *site) open(t *testing.T, opts ...idemzk.Option) *idem.Engine {
	t.Helper()
	engine, err := idemzk.New(t.Context(), s.ensemble, s.client, opts...)
	if err != nil {
		t.Fatalf("New() = %v, want an engine", err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// lose makes Redis lose all of its records.
func (s *site) lose(t *testing.T) {
	t.Helper()
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
}

func answers(text string) func() string { return func() string { return text } }

func TestNew(t *testing.T) {
	t.Parallel()
	for row, markers := range map[string]idemzk.Option{
		"ZooKeeper with durable markers, Redis with a witness": idemzk.WithDurableMarkers(time.Hour),
		"ZooKeeper, Redis with a witness":                      idemzk.WithoutDurableMarkers(),
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			config, client, prefix := ensemble(t), connect(t, testserver.SharedRedis(t)), redisstore.WithPrefix(testserver.KeyPrefix(t))
			enginetest.Run(t, row, func(t *testing.T, opts ...idem.SetupOption) (*idem.Engine, error) {
				opts = append(opts, markers, prefix, nil)
				return idemzk.New(t.Context(), config, client, opts...)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good, client := ensemble(t), connect(t, testserver.SharedRedis(t))
	away := connect(t, "redis://127.0.0.1:1")
	off := idemzk.WithoutDurableMarkers()
	for name, c := range map[string]struct {
		ensemble zookeeper.Config
		client   goredis.UniversalClient
		opts     []idemzk.Option
		want     string
	}{
		"no choice of markers":     {good, client, nil, "say WithDurableMarkers(retention), and a key does not run again although Redis has lost its record, or WithoutDurableMarkers()"},
		"two choices":              {good, client, []idemzk.Option{off, idemzk.WithDurableMarkers(time.Hour)}, "more than once"},
		"no retention":             {good, client, []idemzk.Option{idemzk.WithDurableMarkers(0)}, "retention"},
		"no client":                {good, nil, []idemzk.Option{off}, "no client of Redis"},
		"a Redis that is away":     {good, away, []idemzk.Option{off}, "refused"},
		"no servers":               {zookeeper.Config{}, client, []idemzk.Option{off}, "names no servers"},
		"no prefix":                {good, client, []idemzk.Option{off, redisstore.WithPrefix("")}, "prefix"},
		"a prefix that is no path": {good, client, []idemzk.Option{off, redisstore.WithPrefix("..")}, `".."`},
		"a witness at no path":     {good, client, []idemzk.Option{off, idemzk.WithWitnessPath("witness")}, "path"},
		"read-only":                {good, client, []idemzk.Option{off, redisstore.WithReadOnly()}, "read-only"},
		"an option of no kind":     {good, client, []idemzk.Option{off, odd{}}, "odd is no option"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := append([]idemzk.Option{redisstore.WithPrefix(testserver.KeyPrefix(t))}, c.opts...)
			if engine, err := idemzk.New(t.Context(), c.ensemble, c.client, opts...); err == nil || engine != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("New() = %v, %v, want an error with %q", engine, err, c.want)
			}
		})
	}
}

type odd struct{}

func (odd) ConfiguresEngine() {}

// Two services share an ensemble. Each has its own keys, locks, markers and witness, so none notices what the
// other one does.
func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	first := newSite(t)
	second := newSite(t)
	second.ensemble = first.ensemble
	team := redisstore.WithPrefix("team b")
	key, running, end := enginetest.NewKey(), make(chan struct{}), make(chan struct{})
	a, b := first.open(t, idemzk.WithDurableMarkers(time.Hour)), second.open(t, idemzk.WithDurableMarkers(time.Millisecond), team)
	go func() {
		_, _ = enginetest.Pay(a, key, func() string {
			close(running)
			<-end
			return "one"
		})
	}()
	<-running
	if res, err := enginetest.Pay(b, key, answers("two")); err != nil || string(res.Response.Body) != "two" {
		t.Errorf("the key of another service: %q, %v, want that it pays", res.Response.Body, err)
	}
	close(end)
	awaitMarkers(t, b, 0) // its retention is over, and that of the other service is not
	awaitMarkers(t, a, 1)

	second.lose(t)
	wantRefused(t, second.open(t, idemzk.WithDurableMarkers(time.Hour), team), idem.CodeStoreLost)
	if _, err := enginetest.Pay(first.open(t, idemzk.WithDurableMarkers(time.Hour)), enginetest.NewKey(), answers("three")); err != nil {
		t.Errorf("a service whose Redis has lost nothing: %v", err)
	}
}

func wantRefused(t *testing.T, engine *idem.Engine, code idem.Code) {
	t.Helper()
	_, err := enginetest.Pay(engine, enginetest.NewKey(), answers("payment"))
	if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != code {
		t.Errorf("a payment: %v, want %s", err, code)
	}
}

// awaitMarkers waits until a service has so many markers.
func awaitMarkers(t *testing.T, engine *idem.Engine, want int) {
	t.Helper()
	locker := engine.Locker().(*zookeeper.Locker)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		stats, err := locker.RemoveMarkers(t.Context(), zookeeper.MarkerRemoval{Retention: time.Hour})
		if err == nil && stats.Looked == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d markers, %v, want %d", stats.Looked, err, want)
		}
	}
}

// An instance that starts after Redis has lost its records refuses. The witness may have another path.
func TestWitness(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	off, elsewhere := idemzk.WithoutDurableMarkers(), idemzk.WithWitnessPath("/idem/elsewhere")
	if _, err := enginetest.Pay(s.open(t, off, elsewhere), enginetest.NewKey(), answers("payment")); err != nil {
		t.Fatal(err)
	}
	s.lose(t)
	wantRefused(t, s.open(t, off, elsewhere), idem.CodeStoreLost)
	if _, err := enginetest.Pay(s.open(t, off), enginetest.NewKey(), answers("payment")); err != nil {
		t.Errorf("a service with another witness: %v, want that it begins anew", err)
	}
}

// With durable markers a key does not run again, although Redis has lost it and nobody has looked. The markers go in the end.
func TestDurableMarkers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		markers idemzk.Option
		code    idem.Code // of a repeat, "" for another payment
	}{"on": {idemzk.WithDurableMarkers(time.Hour), idem.CodeResultUnavailable}, "off": {idemzk.WithoutDurableMarkers(), ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key := newSite(t), enginetest.NewKey()
			engine := s.open(t, c.markers, redisstore.WithLossAcceptance(nil))
			if _, err := enginetest.Pay(engine, key, answers("one")); err != nil {
				t.Fatal(err)
			}
			g, err := engine.Guarantee(idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
			through := guarantee.Loss | guarantee.ClockStep
			if got := g.Of(guarantee.Elsewhere).Once & through; err != nil || (got == through) != (c.code != "") || got != through && got != 0 {
				t.Errorf("the guarantee holds through %s, %v", got, err)
			}
			s.lose(t)
			res, err := enginetest.Pay(engine, key, answers("two"), idem.CodeStoreLost, idem.CodeInProgress) // until the loss is accepted, and the lock is free
			refusal, _ := errors.AsType[*idem.Refusal](err)
			switch {
			case c.code == "" && (err != nil || string(res.Response.Body) != "two"):
				t.Errorf("a repeat = %q, %v, want another payment", res.Response.Body, err)
			case c.code != "" && (refusal == nil || refusal.Code != c.code):
				t.Errorf("a repeat = %q, %v, want %s", res.Response.Body, err, c.code)
			}
		})
	}
}

// payInDoubt leaves the outcome unknown.
func payInDoubt(engine *idem.Engine, key idem.Key) {
	defer func() { _ = recover() }()
	_, _ = enginetest.Pay(engine, key, func() string { panic("in doubt") })
}

// The marker of an unknown outcome stays, and shows the outcome to people after Redis has lost it.
func TestMarkerOfAnUnknownOutcomeRestoresIt(t *testing.T) {
	t.Parallel()
	s, key := newSite(t), enginetest.NewKey()
	engine := s.open(t, idemzk.WithDurableMarkers(time.Hour), redisstore.WithLossAcceptance(nil))
	payInDoubt(engine, key)
	awaitMarkers(t, engine, 1)
	s.lose(t)
	if err := engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	engine = s.open(t, idemzk.WithDurableMarkers(time.Millisecond), redisstore.WithLossAcceptance(nil))
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		rec, err := engine.Store().Get(t.Context(), idem.NewKeyID("", key))
		if err == nil && rec.State == driver.StateUnknown {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Get() = %v, %v, want an unknown outcome", rec.State, err)
		}
	}
	awaitMarkers(t, engine, 1)
}

// lockedBuffer takes the log of goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Markers of unknown outcomes stay while Redis is lost, and the log tells of it.
func TestRemovalThatFailsIsLogged(t *testing.T) {
	t.Parallel()
	s, key := newSite(t), enginetest.NewKey()
	first := s.open(t, idemzk.WithDurableMarkers(time.Hour))
	payInDoubt(first, key)
	s.lose(t)
	var log lockedBuffer
	s.ensemble.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s.open(t, idemzk.WithDurableMarkers(time.Millisecond))
	if err := first.Close(t.Context()); err != nil { // it may lead
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(log.String(), "old markers were not removed"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not tell that markers were not removed:\n%s", log.String())
		}
	}
}
