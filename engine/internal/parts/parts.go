// Package parts makes an engine of a lock and a store that were opened together.
package parts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// closeTimeout bounds the end of a session that was opened in vain.
const closeTimeout = 2 * time.Second

// Options are those that every set-up takes.
type Options struct {
	Log *slog.Logger // of the engine, unless idem.WithLogger names another one

	engine  []idem.Option
	sealing sealed.Sealing
}

// Take takes an option of these kinds. A nil option is ignored.
func (o *Options) Take(opt any) error {
	switch opt := opt.(type) {
	case nil:
	case idem.Option:
		o.engine = append(o.engine, opt)
	case sealed.Sealing:
		o.sealing = opt
	default:
		return fmt.Errorf("%T is no option of this set-up", opt)
	}
	return nil
}

// errApart says that a request would take more trips than it needs to.
var errApart = errors.New("the locks have another prefix or schema than the records: leave it out of their options, because they follow the records")

// Engine returns an engine that ends the session of its locks when it is closed. After an error the session has ended.
func (o *Options) Engine(ctx context.Context, session idem.LockSession, locker driver.Locker, store driver.Store, own ...idem.Option) (*idem.Engine, error) {
	engine, err := o.engineOf(ctx, session, locker, store, own)
	if err != nil {
		End(ctx, session)
	}
	return engine, err
}

func (o *Options) engineOf(ctx context.Context, session idem.LockSession, locker driver.Locker, store driver.Store, own []idem.Option) (*idem.Engine, error) {
	locks, offers := locker.(driver.OfferingLocker)
	records, takes := store.(driver.LockingStore)
	if offers && takes && records.LockSpace() != nil && records.LockSpace() != locks.LockSpace() {
		return nil, errApart
	}
	store, err := o.sealing.Over(ctx, store)
	if err != nil {
		return nil, err
	}
	if o.Log != nil {
		own = append(own, idem.WithLogger(o.Log))
	}
	return idem.New(locker, store, append(append(own, o.engine...), idem.WithLockSession(session))...)
}

// End ends a session that has no engine.
func End(ctx context.Context, session idem.LockSession) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = session.Close(ctx) // otherwise it times out
}
