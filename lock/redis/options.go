package redislock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// DefaultTTL is the default of [WithTTL].
const DefaultTTL = 10 * time.Second

// minTTL leaves a heartbeat a third of a second, and the holder a tenth of one.
const minTTL = time.Second

// Option configures a [Locker]. A nil option is ignored.
type Option func(*config)

type config struct {
	prefix string
	ttl    time.Duration
	log    *slog.Logger

	// Tests set these.
	now           leaseclock.Source
	evictionEvery time.Duration
}

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// WithPrefix sets the prefix of all keys. "idem" by default. Lockers with different
// prefixes do not see each other's locks.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a lock outlives its holder. [DefaultTTL] by default, one second
// at least. It does not limit how long a lock can be held. Processes may use different
// values.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithLogger sets the logger for warnings. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

func newConfig(opts []Option) (config, error) {
	c := config{prefix: "idem", ttl: DefaultTTL, now: leaseclock.Now, evictionEvery: redisserver.EvictionEvery}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if err := redisserver.CheckPrefix(c.prefix); err != nil {
		return c, fmt.Errorf("lock/redis: %w", err)
	}
	if c.ttl < minTTL {
		return c, fmt.Errorf("lock/redis: time to live %v is too short, it must be at least %v", c.ttl, minTTL)
	}
	return c, nil
}
