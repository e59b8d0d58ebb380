package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
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
