package redisstore

import (
	"context"
	"fmt"
	goredis "github.com/redis/go-redis/v9"
	"log/slog"
	"testing"
	"time"
)

// quiet drops the warnings about test servers without persistence.
func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// withRecheck sets the least pause between two looks at the witness.
func withRecheck(d time.Duration) Option { return func(c *config) { c.recheck = d } }

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

// withReread sets how often a store asks the witness without a loss.
func withReread(d time.Duration) Option { return func(c *config) { c.reread = d } }
