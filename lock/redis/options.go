package redislock

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// DefaultTTL is how long a lock outlives a process that dies, unless [WithTTL]
// says otherwise.
const DefaultTTL = 10 * time.Second

// minTTL leaves a heartbeat a third of a second, and the holder a tenth of one.
const minTTL = time.Second

// Option configures a [Locker].
type Option func(*config)

type config struct {
	prefix string
	ttl    time.Duration
	log    *slog.Logger
	now    leaseclock.Source // tests set their own

	evictionEvery time.Duration // between two looks at the servers' eviction policy
}

// WithPrefix sets what all keys start with; "idem" by default. Lockers with
// different prefixes know nothing of each other.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a lock lasts when its holder has gone silent;
// [DefaultTTL] by default, at least a second. It does not limit how long a lock
// can be held. Processes may differ in it.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithLogger sets where warnings go; [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

func newConfig(opts []Option) (config, error) {
	c := config{prefix: "idem", ttl: DefaultTTL, now: leaseclock.Now, evictionEvery: evictionEvery}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.prefix == "" || strings.ContainsAny(c.prefix, "{}") {
		return c, fmt.Errorf("lock/redis: prefix %q: want some text without braces", c.prefix)
	}
	if c.ttl < minTTL {
		return c, fmt.Errorf("lock/redis: time to live %v is too short: want %v at least", c.ttl, minTTL)
	}
	return c, nil
}
