package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// ErrRights says that the user of the database lacks a right on one of the tables. [Grants] has the
// statements that grant them.
var ErrRights = errors.New("tokenstore/sql: the user of the database lacks rights")

// Role is who uses the tables.
type Role uint8

// The roles. Each has the rights that its work needs, and no more.
const (
	// RoleService is a service, also one with console and sweeper.
	RoleService Role = iota
	// RoleOperator is idemctl, and a process that only sweeps, with [WithExpiry] of 0.
	RoleOperator
	// RoleReader shows and lists records with [WithReadOnly], and reads the view.
	RoleReader
)

// right is a right on a table.
type right struct{ table, name string }

// rightsOf has the rights of each role. Nobody needs a right on the table never: the database looks into it
// with those of its owner.
var rightsOf = map[Role][]struct {
	table string
	names []string
}{
	RoleService: {
		{"schema", []string{"SELECT", "UPDATE"}}, // Ping
		{"records", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"bindings", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"domains", []string{"SELECT"}},
		{"decisions", []string{"SELECT", "INSERT"}},       // the console
		{"notes", []string{"SELECT", "INSERT", "UPDATE"}}, // DeclareSealed, NoteFence
		{"locks", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"lock_domain", []string{"SELECT", "INSERT", "UPDATE"}},
	},
	RoleOperator: {
		{"schema", []string{"SELECT", "UPDATE"}},
		{"records", []string{"SELECT", "INSERT", "UPDATE"}}, // INSERT issues tokens and repairs
		{"domains", []string{"SELECT", "INSERT"}},           // RetireDomain
		{"decisions", []string{"SELECT", "INSERT"}},
		{"notes", []string{"SELECT", "INSERT", "UPDATE"}}, // NoteFence
		{"locks", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"lock_domain", []string{"SELECT", "INSERT", "UPDATE"}},
	},
	RoleReader: {
		{"schema", []string{"SELECT"}},
		{"records", []string{"SELECT"}},
		{"domains", []string{"SELECT"}},
		{"decisions", []string{"SELECT"}},
		{"notes", []string{"SELECT"}},
		{"locks", []string{"SELECT"}},
		{"lock_domain", []string{"SELECT"}},
		{viewName, []string{"SELECT"}},
	},
}

// rights lists those of a role on the tables of a store. The view is for people, and package lock/sql tries those on its
// tables when it starts.
func (r Role) rights() (list []right) {
	for _, of := range rightsOf[r] {
		for _, name := range of.names {
			if of.table != viewName && !strings.HasPrefix(of.table, "lock") {
				list = append(list, right{of.table, name})
			}
		}
	}
	return list
}

// needed returns the rights without which a store does not start. A store that removes nothing by itself may
// be an operator's.
func (c *config) needed() []right {
	switch {
	case c.readOnly:
		return RoleReader.rights()
	case c.expireEvery > 0:
		return RoleService.rights()
	}
	return slices.DeleteFunc(RoleOperator.rights(), func(r right) bool { return !slices.Contains(RoleService.rights(), r) })
}

// Grants returns the statements that give a role its rights, without semicolons. user is a role of PostgreSQL, or an account of
// MySQL such as payments or payments@10.0.0.5. The tables have to exist. Whoever runs the statements owns the
// tables, or may grant the rights of others.
//
// SQLite has no users. The error wraps ErrNotMigrated, or is one of the database.
func Grants(ctx context.Context, db *sql.DB, d dialect.Dialect, role Role, user string, opts ...Option) ([]string, error) {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return nil, err
	}
	users := cfg.kind.users
	if users == nil {
		return nil, fmt.Errorf("tokenstore/sql: grants: %s has no users: the rights are those of the file", d)
	}
	if rightsOf[role] == nil {
		return nil, fmt.Errorf("tokenstore/sql: grants: there is no role %d", role)
	}
	grantee, err := users.grantee(user)
	if err != nil {
		return nil, err
	}
	n := cfg.names()
	if err := n.check(ctx, db); err != nil {
		return nil, n.explain(ctx, db, err)
	}
	if err := n.find(ctx, db); err != nil {
		return nil, fmt.Errorf("tokenstore/sql: grants: %w", err)
	}
	var list []string
	if users.ofSchema != "" && n.schema != "" {
		list = append(list, "GRANT "+users.ofSchema+" ON SCHEMA "+n.dialect.Quoted(n.schema)+" TO "+grantee)
	}
	for _, of := range rightsOf[role] {
		list = append(list, "GRANT "+strings.Join(of.names, ", ")+" ON "+n.table(of.table)+" TO "+grantee)
	}
	return list, nil
}

// CheckRights returns nil if the user of the store's pool has the rights of a role. The error wraps ErrRights
// and names all that are missing, or it is one of the database.
func (s *Store) CheckRights(ctx context.Context, role Role) error {
	return s.checkRights(ctx, role.rights())
}

// checkRights returns ErrRights with all the rights that the user lacks.
func (n names) checkRights(ctx context.Context, q querier, wanted []right) error {
	if n.dialect.users == nil {
		return nil
	}
	lacking, err := n.dialect.users.lacking(ctx, q, n, wanted)
	if err != nil || len(lacking) == 0 {
		return err
	}
	var of []string // the rights on each table
	for i, r := range lacking {
		if i > 0 && lacking[i-1].table == r.table {
			continue
		}
		var rights []string
		for _, other := range lacking[i:] {
			if other.table == r.table {
				rights = append(rights, other.name)
			}
		}
		of = append(of, strings.Join(rights, ", ")+" on "+n.table(r.table))
	}
	return fmt.Errorf("%w: %s: idemctl store grants prints the GRANT statements (docs/sql.md#rights)", ErrRights, strings.Join(of, "; "))
}

// quotedAs puts a text into quotes of SQL.
func quotedAs(quote, text string) string {
	return quote + strings.ReplaceAll(text, quote, quote+quote) + quote
}

func postgresGrantee(user string) (string, error) {
	if user == "" || strings.ContainsRune(user, 0) {
		return "", errors.New("tokenstore/sql: grants: no user")
	}
	return quotedAs(`"`, user), nil
}

func mysqlGrantee(account string) (string, error) {
	user, host, found := strings.Cut(account, "@")
	if user == "" || strings.ContainsAny(account, "'\\\x00") {
		return "", errors.New("tokenstore/sql: grants: want an account such as payments or payments@10.0.0.5")
	}
	if !found {
		host = "%"
	}
	return quotedAs("'", user) + "@" + quotedAs("'", host), nil
}

// postgresLacking asks for all rights at once. A right on each column is as good as one on the table.
func postgresLacking(ctx context.Context, q querier, n names, wanted []right) ([]right, error) {
	var values []string
	for i, r := range wanted {
		values = append(values, fmt.Sprintf("(%d, '%s', '%s')", i, n.prefix+r.table, r.name)) // checkName has refused quotes
	}
	const usage = "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" +
		" WHERE c.relname = $1 AND c.relkind IN ('r', 'p') AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND (n.nspname = $2 OR $2 = '' AND n.nspname = ANY" +
		" (SELECT replace(btrim(s, ' \"'), '$user', session_user) FROM unnest(string_to_array(pg_catalog.current_setting('search_path'), ',')) s)) LIMIT 1"
	var schema string
	switch err := q.QueryRowContext(ctx, usage, n.prefix+"records", n.schema).Scan(&schema); {
	case err == nil:
		return nil, fmt.Errorf("%w: USAGE on schema %s: idemctl store grants prints the GRANT statements (docs/sql.md#rights)", ErrRights, schema)
	case !errors.Is(err, sql.ErrNoRows):
		return nil, err
	}
	if err := n.find(ctx, q); err != nil {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, "SELECT w.i FROM (VALUES "+strings.Join(values, ", ")+") AS w (i, t, r)"+
		" JOIN pg_catalog.pg_class c ON c.relname = w.t JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1"+
		" AND CASE WHEN w.r = 'DELETE' THEN NOT pg_catalog.has_table_privilege(c.oid, w.r) ELSE EXISTS (SELECT FROM pg_catalog.pg_attribute a"+
		" WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, w.r)) END ORDER BY w.i", n.schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var lacking []right
	for rows.Next() {
		var i int
		if err := rows.Scan(&i); err != nil {
			return nil, err
		}
		lacking = append(lacking, wanted[i])
	}
	return lacking, rows.Err()
}

// mysqlLacking prepares a statement for each right, which the server refuses without it. The tables of
// privileges do not show those of roles.
func mysqlLacking(ctx context.Context, q querier, n names, wanted []right) (lacking []right, err error) {
	column := map[string]string{"schema": "version", "records": "rev", "bindings": "kind", "notes": "noted"}
	for _, r := range wanted {
		table := n.table(r.table)
		text := map[string]string{
			"SELECT": "SELECT * FROM " + table, //nolint:unqueryvet // of every column
			"INSERT": "INSERT INTO " + table + " () VALUES ()",
			"UPDATE": "UPDATE " + table + " SET " + column[r.table] + " = 0 WHERE FALSE",
			"DELETE": "DELETE FROM " + table + " WHERE FALSE",
		}[r.name]
		switch err := prepared(ctx, q, text); {
		case n.dialect.Fault(err) == sqldialect.Denied:
			lacking = append(lacking, r)
		case err != nil && sqldialect.MySQLNumber(err) == 0:
			return nil, err
		}
	}
	return lacking, nil
}

// prepared prepares a statement and forgets it.
func prepared(ctx context.Context, q querier, text string) error {
	statement, err := q.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	defer statement.Close() //nolint:errcheck // the server forgets it with the connection, too
	return nil
}
