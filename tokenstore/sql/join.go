package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// JoinOption configures [Join]. Every [Option], [JoinedOption] and [idem.Option] is one, and so is sealed.Responses.
type JoinOption = idem.SetupOption

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (JoinedOption) ConfiguresEngine() {}

// Join returns an engine whose records commit together with what the handlers write to a database. It is [New], [Store.Joined]
// and [idem.NewJoined], and its error is that of those. It takes the options of all three, such as [WithIsolation]. On SQLite it
// needs [WithReadPool] and [WithSoleProcess]. A pool of pgx has a Join in package pgxstore. Closing the engine closes the store.
// The database stays open.
//
// [WithLogger] is the logger of the engine too, unless [idem.WithLogger] gives it another one.
func Join(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...JoinOption) (*idem.Engine, error) {
	return JoinOver(ctx, db, d, (*Store).Joined, opts...)
}

// JoinOver is Join for packages with connections past database/sql. joined calls [Store.JoinedOver].
func JoinOver(ctx context.Context, db *sql.DB, d dialect.Dialect, joined func(*Store, ...JoinedOption) (*Joined, error), opts ...JoinOption) (*idem.Engine, error) {
	var ofStore []Option
	var ofJoined []JoinedOption
	var ofEngine []idem.Option
	var over overlay
	for _, opt := range opts {
		switch opt := opt.(type) {
		case nil:
		case Option:
			ofStore = append(ofStore, opt)
		case JoinedOption:
			ofJoined = append(ofJoined, opt)
		case idem.Option:
			ofEngine = append(ofEngine, opt)
		case overlay:
			over = opt
		default:
			return nil, fmt.Errorf("tokenstore/sql: join: %T is no option of New, Joined or NewJoined", opt)
		}
	}
	store, err := New(ctx, db, d, ofStore...)
	if err != nil {
		return nil, err
	}
	if store.config.expireEvery == 0 { // otherwise New has checked them
		err = store.checkRights(ctx, RoleService.rights())
	}
	var records driver.JoinedStore
	if err == nil {
		records, err = joined(store, ofJoined...)
	}
	if err == nil && over != nil {
		records, err = over.OverJoined(ctx, records)
	}
	var engine *idem.Engine
	if err == nil {
		own := []idem.Option{idem.WithCloser(store)}
		if log := store.config.log; log != slog.Default() { // otherwise the engine finds it by itself, and knows what its telemetry logs
			own = append(own, idem.WithLogger(log))
		}
		engine, err = idem.NewJoined(records, append(own, ofEngine...)...)
	}
	if err != nil {
		_ = store.Close()
	}
	return engine, err
}

// overlay is an option that puts another store over the joined one, such as sealed.Responses.
type overlay interface {
	OverJoined(ctx context.Context, store driver.JoinedStore) (driver.JoinedStore, error)
}
