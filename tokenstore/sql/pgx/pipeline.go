package pgxstore

import (
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx/internal/pgxpipeline"
)

// Open is [sql.Open] for PostgreSQL, with [sqlstore.Strict] and with [Pipelined]. Handlers in joined mode keep their [sql.Tx], and a
// payment takes as many round trips as its own transaction. The error is that of a wrong data source name.
func Open(dataSourceName string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dataSourceName)
	if err != nil {
		return nil, fmt.Errorf("tokenstore/sql/pgx: %w", err)
	}
	return sql.OpenDB(sqlstore.Strict(Pipelined(stdlib.GetConnector(*config)))), nil
}

// Pipelined wraps a connector of pgx's stdlib, for [sql.OpenDB]. In joined mode BEGIN then shares a round trip with the statement
// that takes the key, and COMMIT one with the statement that completes the record. Everywhere else the connections work as
// without it. [sql.Conn.Raw] gives a connection whose method Raw returns that of the driver.
//
// Another wrapper may go around this one, such as [sqlstore.Strict], if it has a method Raw too and hands on its contexts.
func Pipelined(c sqldriver.Connector) sqldriver.Connector { return pgxpipeline.Wrap(c) }
