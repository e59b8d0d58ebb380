package idemredis

import (
	"context"
	"fmt"
	"log/slog"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/engine/internal/parts"
	"github.com/idemkeeper/idemkeeper/idem"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// Option configures [New]. Every [idem.Option], [redisstore.Option] and [redislock.Option] is one, and so are [WithLogger] and
// sealed.Responses.
type Option = idem.SetupOption

type logger struct{ log *slog.Logger }

func (logger) ConfiguresEngine() {}

// WithLogger sets the logger of locks, records and engine. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return logger{log} }

// New returns an engine on client, which is one server, a server behind Sentinel, or a cluster. It is [redisstore.New], [redislock.New]
// and [idem.New], and its error is that of those. The locks have the prefix of the records. Closing the engine gives its locks back. The client
// stays open.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*idem.Engine, error) {
	var common parts.Options
	var ofStore []redisstore.Option
	var ofLock []redislock.Option
	for _, opt := range opts {
		switch opt := opt.(type) {
		case redisstore.Option:
			ofStore = append(ofStore, opt)
		case redislock.Option:
			ofLock = append(ofLock, opt)
		case logger:
			common.Log, ofStore, ofLock = opt.log, append(ofStore, redisstore.WithLogger(opt.log)), append(ofLock, redislock.WithLogger(opt.log))
		default:
			if err := common.Take(opt); err != nil {
				return nil, fmt.Errorf("idemredis: %w", err)
			}
		}
	}
	store, err := redisstore.New(ctx, client, ofStore...)
	if err != nil {
		return nil, err
	}
	besideRecords := redislock.WithPrefix(redisstore.PrefixOf(ofStore...))
	locker, err := redislock.New(ctx, client, append([]redislock.Option{besideRecords}, ofLock...)...)
	if err != nil {
		return nil, err
	}
	return common.Engine(ctx, locker, locker, store)
}
