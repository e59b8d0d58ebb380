package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// quiet drops the warnings about test servers without persistence.
func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// withRecheck sets the least pause between two looks at the witness.
func withRecheck(d time.Duration) Option { return func(c *config) { c.witnessPause = d } }

// short returns a context that ends soon.
func short(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), 100*time.Millisecond)
	tb.Cleanup(cancel)
	return ctx
}

func describeOptions(o *goredis.UniversalOptions) string {
	user := o.Username
	if o.Password != "" {
		user += ":" + o.Password
	}
	s := fmt.Sprintf("%v/%s/%d/%v/%s", o.Addrs, user, o.DB, o.IsClusterMode, o.MasterName)
	if o.TLSConfig != nil {
		s += "+tls"
	}
	return s
}

// manual is a clock that stands until a test advances it.
type manual struct{ ahead atomic.Int64 }

func (m *manual) option() Option {
	start := time.Now()
	return func(c *config) { c.now = func() time.Time { return start.Add(time.Duration(m.ahead.Load())) } }
}

func (m *manual) advance(d time.Duration) { m.ahead.Add(int64(d)) }

// withReread sets how often a store asks the witness without a loss.
func withReread(d time.Duration) Option { return func(c *config) { c.witnessEvery = d } }

// hook runs before the command or pipeline with a number, or before each one if the number is 0, and after each one. It
// counts them, which are the round trips.
type hook struct {
	n      atomic.Int64
	at     int64
	before func()
	after  func([]goredis.Cmder)
}

func (h *hook) around(cmds []goredis.Cmder, next func() error) error {
	if n := h.n.Add(1); h.before != nil && (n == h.at || h.at == 0) {
		h.before()
	}
	err := next()
	if h.after != nil {
		h.after(cmds)
	}
	return err
}

func (h *hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		return h.around([]goredis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h *hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		return h.around(cmds, func() error { return next(ctx, cmds) })
	}
}

// calls are all methods that ask the server. Those with a key have a fresh one.
var calls = map[string]func(ctx context.Context, s *Store) error{
	"Get":   func(ctx context.Context, s *Store) error { _, err := s.Get(ctx, freshID()); return err },
	"Issue": func(ctx context.Context, s *Store) error { _, err := s.Issue(ctx, freshID(), time.Hour); return err },
	"Begin": func(ctx context.Context, s *Store) error {
		id, req := newAttempt(driver.ClientKey)
		_, err := s.Begin(ctx, id, req)
		return err
	},
	"Settle": func(ctx context.Context, s *Store) error {
		_, err := s.Settle(ctx, freshID(), completion(driver.Attempt{}, ""))
		return err
	},
	"Abort": func(ctx context.Context, s *Store) error {
		id, req := newAttempt(driver.ClientKey)
		return s.Abort(ctx, id, req)
	},
	"ListOpen":      func(ctx context.Context, s *Store) error { _, err := s.ListOpen(ctx, driver.OpenQuery{}); return err },
	"RetireDomain":  func(ctx context.Context, s *Store) error { return s.RetireDomain(ctx, "domain", driver.Decision{}) },
	"DomainRetired": func(ctx context.Context, s *Store) error { _, err := s.DomainRetired(ctx, "domain"); return err },
	"NoteFence": func(ctx context.Context, s *Store) error {
		return s.NoteFence(ctx, driver.Fence{Domain: "domain", Token: 7})
	},
	"HighestFence":  func(ctx context.Context, s *Store) error { _, err := s.HighestFence(ctx, "domain"); return err },
	"Ping":          func(ctx context.Context, s *Store) error { return s.Ping(ctx) },
	"AcceptLoss":    func(ctx context.Context, s *Store) error { _, err := s.AcceptLoss(ctx); return err },
	"DeclareSealed": func(ctx context.Context, s *Store) error { return s.DeclareSealed(ctx) },
	"Sealed":        func(ctx context.Context, s *Store) error { _, err := s.Sealed(ctx); return err },
	"Clock":         func(ctx context.Context, s *Store) error { _, err := s.Clock(ctx); return err },
	"Decisions":     func(ctx context.Context, s *Store) error { _, err := s.Decisions(ctx, driver.KeyID{}); return err },
	"EachKey": func(ctx context.Context, s *Store) error {
		return s.EachKey(ctx, func(driver.KeyID) bool { return true })
	},
	"Replicas": func(ctx context.Context, s *Store) error { _, _, err := s.Replicas(ctx); return err },
}

func freshID() driver.KeyID { id, _ := newAttempt(driver.ClientKey); return id }

func TestNewRefusesOptions(t *testing.T) {
	client, err := Connect("redis://" + startMini(t).Addr()) // with its own time-outs
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, opts := range map[string][]Option{
		"no prefix":                              {WithPrefix("")},
		"a prefix with a hash tag":               {WithPrefix("a{b}")},
		"no replicas":                            {WithReplicas(0, time.Second)},
		"no time for replicas":                   {WithReplicas(1, 0)},
		"more than half of the read time":        {WithReplicas(1, ioTimeout/2+1)},
		"only reads, and the losses accepted":    {WithReadOnly(), WithLossAcceptance(nil)},
		"a witness of no function":               {WithWitness[Witness](nil)},
		"a witness that remembers another thing": {witnessed(&register{data: []byte("something else"), version: 3})},
	} {
		if _, err := New(t.Context(), client, append(opts, quiet())...); err == nil || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("New() with %s = %v, want a refusal", name, err)
		}
	}
	for _, timeout := range []time.Duration{time.Millisecond, ioTimeout / 2} {
		if _, err := New(t.Context(), client, quiet(), WithReplicas(1, timeout)); err != nil {
			t.Errorf("New() with %v for replicas = %v, want <nil>", timeout, err)
		}
	}
}
