package main

import (
	"context"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// makeSweeper makes what settles outcomes in doubt that no client asks for. All
// routes are settled alike, by the ledger.
func (a *App) makeSweeper(m *server.Metrics, resolver idem.Resolver) (err error) {
	policy, err := idem.Policy{Scope: auth.Scope, Doubt: idem.Ask(resolver)}.WithDefaults()
	if err != nil {
		return err
	}
	a.backends.resolve = func(ctx context.Context, id idem.KeyID) (idem.Record, error) {
		return a.engine.Resolve(ctx, id, &policy)
	}
	policies := sweeper.ForAll(policy)
	opts := append([]sweeper.Option{sweeper.WithObserver(func(ctx context.Context, p sweeper.Pass) {
		m.Swept(p)
		a.logPass(ctx, &p)
	})}, a.backends.sweep...)
	a.sweeper, err = sweeper.New(a.engine, a.backends.store, policies, opts...)
	return err
}

// logPass logs a pass that somebody may want to look into.
func (a *App) logPass(ctx context.Context, p *sweeper.Pass) {
	level := slog.LevelDebug
	if p.Settled()+p.Queued > 0 {
		level = slog.LevelInfo
	}
	// A failed chore or election, which has no duration, has looked at nothing.
	unreadable := int64(p.Newer)<<32 | int64(p.Corrupt)
	if p.Err != nil || p.Duration > 0 && a.unreadable.Swap(unreadable) != unreadable {
		level = slog.LevelWarn
	}
	a.log.LogAttrs(ctx, level, "sweep", slog.Bool("leader", p.Leader), slog.Duration("took", p.Duration),
		slog.Int("open", p.Looked), slog.Int("held", p.Held), slog.Int("applied", p.Applied), slog.Int("released", p.Released),
		slog.Int("unknown", p.Unknown), slog.Int("queued", p.Queued), slog.Int("unqueued", p.Unqueued), slog.Int("failed", p.Failed),
		slog.Int("newer", p.Newer), slog.Int("corrupt", p.Corrupt), slog.Any("err", p.Err))
}
