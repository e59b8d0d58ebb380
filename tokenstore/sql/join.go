package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// JoinOption configures [Join]. Every [Option], [JoinedOption] and [idem.Option] is one.
type JoinOption = idem.SetupOption

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (JoinedOption) ConfiguresEngine() {}

// Join returns an engine whose records commit together with what the handlers write to a database
// of PostgreSQL, MySQL or MariaDB. It is [New], [Store.Joined] and [idem.NewJoined], and its error is
// that of those. It takes the options of all three, such as [WithIsolation]. Use the three themselves
// for SQLite. A pool of pgx has a Join in package pgxstore. Closing the engine closes the store. The
// database stays open.
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
	for _, opt := range opts {
		switch opt := opt.(type) {
		case nil:
		case Option:
			ofStore = append(ofStore, opt)
		case JoinedOption:
			ofJoined = append(ofJoined, opt)
		case idem.Option:
			ofEngine = append(ofEngine, opt)
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
	var j *Joined
	if err == nil {
		j, err = joined(store, ofJoined...)
	}
	if err != nil {
		_ = store.Close()
		return nil, err
	}
	engine, err := idem.NewJoined(j, append([]idem.Option{idem.WithCloser(store), idem.WithLogger(store.config.log)}, ofEngine...)...)
	if err != nil {
		_ = store.Close()
	}
	return engine, err
}
