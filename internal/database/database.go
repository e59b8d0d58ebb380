// Package database opens the databases that a URL names. The command line and the sample
// service link it, and with it the drivers. The library does not.
package database

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/idemkeeper/idemkeeper/internal/hostport"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
	"github.com/idemkeeper/idemkeeper/internal/tlshint"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

const (
	// dialTimeout bounds the making of a connection. A host without a server refuses at once.
	dialTimeout = 5 * time.Second
	// ioTimeout ends the wait for a server of MySQL that has gone without a word. The driver
	// does not heed every context.
	ioTimeout = 30 * time.Second
	// readers is the number of connections that read a file of SQLite.
	readers = 8
)

// DB is an open database. Close it after its last use.
type DB struct {
	// Write is for everything. On SQLite it has one connection, and Read has more. Elsewhere
	// they are the same.
	Write, Read *sql.DB
	Dialect     dialect.Dialect
	// Unreplicated counts the commits that were cancelled while they waited for a synchronous standby. nil where it is not known.
	Unreplicated func() uint64
	// Name is the URL without user and password, for messages.
	Name string
}

// Options are how a database is opened.
type Options struct {
	// Connections is the most that are open at once on a server. 0 is 20.
	Connections int
	// Create makes a missing file of SQLite. Otherwise it is an error.
	Create bool
	// IdleTransaction makes PostgreSQL end a transaction in which nothing happens for so long. A
	// paused process would keep its rows locked otherwise. MySQL knows such a limit for whole
	// connections only, so there it ends idle connections too. 0 leaves the server's setting.
	IdleTransaction time.Duration
	// TLS names the files for connections to a server. If it names any, and the URL says nothing
	// of TLS, every connection is secured and the server's certificate has to be for the host in
	// the URL. Options of the URL go first.
	TLS tlsfiles.Files
	// PGX and Connector change what connects to PostgreSQL, and what writes to the others. Tests watch and break connections with them.
	PGX       func(*pgx.ConnConfig)
	Connector func(sqldriver.Connector) sqldriver.Connector
}

var errWanted = errors.New("database: want postgres://…, mysql://… or sqlite:FILE")

// Open opens the database of a URL, and connects at the first use:
//
//	postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?…]   options as in libpq
//	mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?…]      options as in github.com/go-sql-driver/mysql
//	sqlite:FILE
//
// Errors do not show passwords.
func Open(name string, o Options) (*DB, error) {
	scheme, _, _ := strings.Cut(name, ":")
	k, ok := kinds[scheme]
	if !ok {
		return nil, errWanted
	}
	return k.open(name, o)
}

// kinds are the databases, by the schemes of their URLs.
var kinds = map[string]struct {
	dialect dialect.Dialect
	open    func(name string, o Options) (*DB, error)
}{
	"postgres":   {dialect.PostgreSQL, openPostgres},
	"postgresql": {dialect.PostgreSQL, openPostgres},
	"mysql":      {dialect.MySQL, openMySQL},
	"sqlite":     {dialect.SQLite, openSQLite},
}

// DialectOf returns the dialect of a URL as in Open, of which the scheme is enough.
func DialectOf(name string) (dialect.Dialect, error) {
	scheme, _, _ := strings.Cut(name, ":")
	k, ok := kinds[scheme]
	if !ok {
		return "", errWanted
	}
	return k.dialect, nil
}

// checkAuthority refuses a URL whose password has characters that belong escaped. A part of the
// password would count as the host or the database otherwise, and errors show those.
func checkAuthority(name string) error {
	_, rest, _ := strings.Cut(name, ":")
	authority, path, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
	if strings.Count(authority, "@") > 1 || strings.Contains(path, "@") || strings.Contains(authority, "?") {
		return errors.New(`database: write "@", "/" and "?" in user, password or options as %40, %2F and %3F`)
	}
	return nil
}

// Close closes the connections.
func (d *DB) Close() error {
	err := d.Write.Close()
	if d.Read != d.Write {
		err = errors.Join(err, d.Read.Close())
	}
	return err
}

// StoreOptions are the options for [sqlstore.New] that fit the database.
func (d *DB) StoreOptions() []sqlstore.Option {
	return []sqlstore.Option{sqlstore.WithReadPool(d.Read)}
}

func openPostgres(name string, o Options) (*DB, error) {
	if err := checkAuthority(name); err != nil {
		return nil, err
	}
	name, err := securePostgres(name, o.TLS)
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(name)
	if err != nil { // pgx leaves the password out where it finds it
		return nil, errors.New("database: PostgreSQL: want postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE")
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, dialTimeout)
	shown := fmt.Sprintf("postgres://%s/%s", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port)), cfg.Database)
	unreplicated := pgxstore.WatchStandby(cfg)
	if o.PGX != nil {
		o.PGX(cfg)
	}
	connector := stdlib.GetConnector(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		if o.IdleTransaction <= 0 {
			return nil
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", o.IdleTransaction.Milliseconds()))
		return err
	}))
	d := pooled(open(pgxstore.Pipelined(connector), cfg.TLSConfig != nil, tlshint.Certified(cfg.TLSConfig)), dialect.PostgreSQL, shown, o)
	d.Unreplicated = unreplicated
	return d, nil
}

func openMySQL(name string, o Options) (*DB, error) {
	if err := checkAuthority(name); err != nil {
		return nil, err
	}
	u, err := url.Parse(name)
	if err != nil || u.Hostname() == "" || len(u.Path) < 2 || strings.Contains(u.Path[1:], "/") || u.Fragment != "" {
		return nil, errors.New("database: MySQL: want mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE")
	}
	host, port, err := hostport.OfURL(u, "3306")
	if err != nil {
		return nil, fmt.Errorf("database: MySQL: %w", err)
	}
	addr := net.JoinHostPort(host, port)
	cfg, err := mysqldriver.ParseDSN("tcp(" + addr + ")/?" + u.RawQuery) // without the password
	if err != nil {
		return nil, fmt.Errorf("database: MySQL: %w", err)
	}
	cfg.User, cfg.DBName = u.User.Username(), u.Path[1:]
	cfg.Passwd, _ = u.User.Password()
	cfg.Timeout = cmp.Or(cfg.Timeout, dialTimeout)
	cfg.ReadTimeout, cfg.WriteTimeout = cmp.Or(cfg.ReadTimeout, ioTimeout), cmp.Or(cfg.WriteTimeout, ioTimeout)
	if err := secureMySQL(cfg, o.TLS); err != nil {
		return nil, err
	}
	cfg.InterpolateParams = true // saves a round trip in most statements
	cfg.Logger = silent{}        // the errors come back
	if o.IdleTransaction > 0 {
		if cfg.Params == nil {
			cfg.Params = map[string]string{}
		}
		cfg.Params["wait_timeout"] = fmt.Sprint(int64((o.IdleTransaction + time.Second - 1) / time.Second))
	}
	var connector sqldriver.Connector
	connector, err = mysqldriver.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("database: MySQL: %w", err)
	}
	if o.Connector != nil {
		connector = o.Connector(connector)
	}
	secured := cfg.TLS != nil || cfg.TLSConfig != "" && cfg.TLSConfig != "false"
	d := pooled(open(connector, secured, tlshint.Certified(cfg.TLS)), dialect.MySQL, "mysql://"+addr+u.Path, o)
	if o.IdleTransaction > 0 {
		d.Write.SetConnMaxIdleTime(o.IdleTransaction / 2) // before the server does
	}
	return d, nil
}

// open returns a pool. If a server refuses the client over TLS, its errors say the likely reason. A handler
// of joined mode that ignores a failed statement commits nothing.
func open(connector sqldriver.Connector, secured, certified bool) *sql.DB {
	if secured {
		connector = explaining{connector, certified}
	}
	return sql.OpenDB(sqlstore.Strict(connector))
}

type explaining struct {
	sqldriver.Connector
	certified bool
}

// Connect implements sqldriver.Connector.
func (c explaining) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if broken(err) {
		err = fmt.Errorf("%w: %w", io.EOF, err)
	}
	if err != nil {
		return nil, tlshint.Explain(err, c.certified)
	}
	return conn, nil
}

// broken recognises that the connection ended, of which MySQL's driver does not say how. Its error of a
// write that failed has no name.
func broken(err error) bool {
	return errors.Is(err, mysqldriver.ErrInvalidConn) || errors.Is(err, sqldriver.ErrBadConn) || err != nil && err.Error() == "bad connection"
}

// silent is a logger of the driver of MySQL.
type silent struct{}

// Print does nothing.
func (silent) Print(...any) {}

func pooled(db *sql.DB, d dialect.Dialect, name string, o Options) *DB {
	n := cmp.Or(o.Connections, 20)
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return &DB{Write: db, Read: db, Dialect: d, Name: name}
}

// fileConnector opens a file of SQLite.
type fileConnector struct {
	dsn string
	of  sqldriver.Driver
}

// Connect implements sqldriver.Connector.
func (c fileConnector) Connect(context.Context) (sqldriver.Conn, error) { return c.of.Open(c.dsn) }

// Driver implements sqldriver.Connector.
func (c fileConnector) Driver() sqldriver.Driver { return c.of }

func openSQLite(name string, o Options) (*DB, error) {
	_, file, _ := strings.Cut(name, ":")
	if file == "" {
		return nil, errWanted
	}
	if !o.Create {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("database: SQLite: %w", err)
		}
	}
	forWriting, forReading := sqlstore.SQLiteDSN(file)
	read, err := sql.Open("sqlite", forReading)
	if err != nil {
		return nil, fmt.Errorf("database: SQLite: %w", err)
	}
	var connector sqldriver.Connector = fileConnector{forWriting, read.Driver()}
	if o.Connector != nil {
		connector = o.Connector(connector)
	}
	write := sql.OpenDB(sqlstore.Strict(connector))
	write.SetMaxOpenConns(1)
	read.SetMaxOpenConns(readers)
	read.SetMaxIdleConns(readers)
	return &DB{Write: write, Read: read, Dialect: dialect.SQLite, Name: "sqlite:" + file}, nil
}
