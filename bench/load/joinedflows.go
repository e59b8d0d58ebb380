package load

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// joinedFlow is the business transaction of businessFlow, and the record commits with it.
func joinedFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.pipelined(ctx)
	if err != nil {
		return nil, err
	}
	return b.joined(ctx, s)
}

// joinedMariaDBFlow is joinedFlow on MariaDB.
func joinedMariaDBFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.strict(ctx)
	if err != nil {
		return nil, err
	}
	return b.joined(ctx, s)
}

func (b *business) joined(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	store, err := b.store(ctx, s)
	if err != nil {
		return nil, err
	}
	joined, err := store.Joined()
	if err != nil {
		return nil, err
	}
	return s.joinedHandlers(joined, func(ctx context.Context) error {
		tx, err := sqlstore.Tx(ctx)
		if err != nil {
			return err
		}
		return b.transfer(ctx, execute(tx))
	})
}

// joinedPgxFlow is joinedFlow with pgx.
func joinedPgxFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, pool, err := s.pgxPool(ctx)
	if err != nil {
		return nil, err
	}
	store, err := b.store(ctx, s)
	if err != nil {
		return nil, err
	}
	joined, err := pgxstore.Joined(store, pool)
	if err != nil {
		return nil, err
	}
	return s.joinedHandlers(joined, func(ctx context.Context) error {
		tx, err := pgxstore.Tx(ctx)
		if err != nil {
			return err
		}
		return b.transfer(ctx, executePgx(tx))
	})
}

// rowsFlow has locks and records in the database of the business. Its handler would call a bank, and then does the business
// transaction.
func rowsFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.postgres(ctx)
	if err != nil {
		return nil, err
	}
	store, err := b.store(ctx, s)
	if err != nil {
		return nil, err
	}
	locker, err := sqllock.New(ctx, b.db, b.dialect, sqllock.WithLogger(silent))
	if err != nil {
		return nil, err
	}
	engine, err := idem.New(locker, store, patient...)
	if err != nil {
		return nil, err
	}
	s.onClose(engine.Close)
	middleware, err := idemgin.New(engine, policy)
	return append([]gin.HandlerFunc{middleware}, b.alone(s)...), err
}

// store keeps its records in the database of the business.
func (b *business) store(ctx context.Context, s *service) (*sqlstore.Store, error) {
	if err := sqlstore.Migrate(ctx, b.db, b.dialect); err != nil {
		return nil, err
	}
	store, err := sqlstore.New(ctx, b.db, b.dialect, sqlstore.WithLogger(silent))
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return store.Close() })
	return store, nil
}

// joinedHandlers are those of a route whose handler pays in the joined transaction.
func (s *service) joinedHandlers(joined driver.JoinedStore, pay func(context.Context) error) ([]gin.HandlerFunc, error) {
	engine, err := idem.NewJoined(joined, patient...)
	if err != nil {
		return nil, err
	}
	s.onClose(engine.Close)
	middleware, err := idemgin.New(engine, policy)
	return []gin.HandlerFunc{middleware, func(c *gin.Context) {
		body := s.pay(c)
		answer(c, body, pay(c))
	}}, err
}
