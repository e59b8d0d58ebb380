package idem

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// This file is what operators ask about a key. The protocol uses none of it. An answer may be
// over by the time somebody reads it, so nothing is ever decided on it.

// Store returns the store that the engine was made with, for a sweeper or a console. Do not change
// records through it while the engine is in use.
func (e *Engine) Store() driver.Store { return e.store }

// Locker returns the locker that the engine was made with, for example for a sweeper that leads by a lock. It is nil in joined mode.
func (e *Engine) Locker() driver.Locker { return e.mode.lockedBy() }

// errNotInspectable says that a locker or a store tells operators nothing.
var errNotInspectable = fmt.Errorf("idem: it tells operators nothing: %w", errors.ErrUnsupported)

// HeldBy returns the owner of a key's lock, for operators, and false if the lock is free. The
// error wraps [driver.ErrUnavailable], or [errors.ErrUnsupported] if the locker is no [driver.LockInspector].
func (e *Engine) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	in := e.mode.inspector()
	if in == nil {
		return driver.Holder{}, false, errNotInspectable
	}
	call, cancel := context.WithTimeout(ctx, e.cfg.lockTimeout)
	defer cancel()
	return in.HeldBy(call, id)
}

// DomainOf returns the lock domain that a lease of the key would have now, for operators. The
// error is as for [Engine.HeldBy].
func (e *Engine) DomainOf(ctx context.Context, id driver.KeyID) (string, error) {
	in := e.mode.inspector()
	if in == nil {
		return "", errNotInspectable
	}
	call, cancel := context.WithTimeout(ctx, e.cfg.lockTimeout)
	defer cancel()
	return in.DomainOf(call, id)
}

// PingLock returns nil if the lock service would give out a lock. The error wraps
// [driver.ErrUnavailable].
func (e *Engine) PingLock(ctx context.Context) error { return e.mode.ping(ctx) }
