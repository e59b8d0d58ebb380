package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// migrateTimeout bounds a migration. Another one may run first.
const migrateTimeout = 2 * time.Minute

// noVersion is the default of --from.
const noVersion = -1

// migration is what store migrate is asked for.
type migration struct {
	print bool
	from  int
	wait  time.Duration
}

func (a *app) storeMigrate() *cobra.Command {
	var m migration
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create the tables of a token store in SQL, or bring them up to date",
		Long: `Create the tables of the token store in --database, or bring them to the version of
this build. It is safe to repeat, and does nothing to tables that are up to date. The
user needs the right to create tables and views, which the services do not need. It
says what it has made.

With --print it runs nothing. It prints the SQL that it would run, for psql, mysql or
sqlite3, and nothing if the tables are up to date. With --from it does not ask the
database for the version of its tables, so a URL such as postgres:// is enough.

Run it before new instances start. Running instances of the earlier build go on, and
do not start again afterwards. Tables that a newer build has migrated are refused.
Payments go on meanwhile. They wait behind a statement that changes a table which a
transaction uses, for at most --lock-timeout at a time.`,
		Example: `  IDEMCTL_DATABASE=postgres://admin@127.0.0.1/payments idemctl store migrate
  idemctl store migrate --print | psql -v ON_ERROR_STOP=1 "$IDEMCTL_DATABASE"
  idemctl --database mysql:// store migrate --print --from 0 > tables.sql
  idemctl --database sqlite:payments.db store migrate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case a.database == "":
				return wrongUse("store migrate needs --database or IDEMCTL_DATABASE")
			case m.from != noVersion && !m.print:
				return wrongUse("--from is for --print")
			case m.from < noVersion || m.from > sqlstore.SchemaVersion:
				return wrongUse("--from %d, want 0 to %d", m.from, sqlstore.SchemaVersion)
			case m.wait <= 0:
				return wrongUse("--lock-timeout %v is not positive", m.wait)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), migrateTimeout)
			defer cancel()
			if m.print {
				return a.printMigration(ctx, m)
			}
			return a.migrate(ctx, m)
		},
	}
	cmd.Flags().BoolVar(&m.print, "print", false, "print the SQL, and run nothing")
	cmd.Flags().IntVar(&m.from, "from", noVersion, "with --print: the version of the tables, 0 for none; by default that of the database")
	cmd.Flags().DurationVar(&m.wait, "lock-timeout", time.Second, "how long a statement, and every payment behind it, waits for a table in use")
	return cmd
}

// migrationOptions are the options of the store for a migration.
func (a *app) migrationOptions(m migration) []sqlstore.Option {
	opts := []sqlstore.Option{sqlstore.WithTablePrefix(a.tables), sqlstore.WithLogger(slog.New(slog.DiscardHandler)), sqlstore.WithMigrationWait(m.wait)}
	if a.schema != "" {
		opts = append(opts, sqlstore.WithSchema(a.schema))
	}
	return opts
}

// migratedRow is a migration in JSON.
type migratedRow struct {
	Version int      `json:"schema_version"`
	From    int      `json:"from_version"`
	Made    []string `json:"made,omitempty"`
	Changed []string `json:"changed,omitempty"`
}

func (a *app) migrate(ctx context.Context, m migration) error {
	db, err := a.openSQL(database.Options{Create: true})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	opts := a.migrationOptions(m)
	plan, err := sqlstore.Plan(ctx, db.Write, db.Dialect, opts...)
	if err == nil {
		err = sqlstore.Migrate(ctx, db.Write, db.Dialect, opts...)
	}
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	if a.json {
		return writeJSON(a.stdout, migratedRow{plan.To, plan.From, plan.Made, plan.Changed})
	}
	var text strings.Builder
	for _, name := range plan.Made {
		fmt.Fprintf(&text, "made %s\n", name)
	}
	for _, name := range plan.Changed {
		fmt.Fprintf(&text, "changed %s\n", name)
	}
	fmt.Fprintf(&text, "the tables in %s have version %d\n", operate.OneLine(db.Name), plan.To)
	if _, err := io.WriteString(a.stdout, text.String()); err != nil || len(plan.Made) == 0 || db.Dialect == sqlstore.SQLite() {
		return err
	}
	_, err = fmt.Fprintln(a.stderr, `services with users of their own need rights on them: "idemctl store grants --for service USER" prints the GRANTs`)
	return err
}

// printMigration prints what migrate would run.
func (a *app) printMigration(ctx context.Context, m migration) error {
	plan, err := a.plan(ctx, m)
	if err != nil {
		return err
	}
	if a.json {
		for _, s := range plan.Statements {
			if err := writeJSON(a.stdout, map[string]string{"sql": s}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(plan.Statements) == 0 {
		_, err := fmt.Fprintf(a.stderr, "the tables have version %d, and nothing is to be done\n", plan.To)
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "-- Idemkeeper: the tables of the token store, from version %d to %d.\n\n%s;\n", plan.From, plan.To, strings.Join(plan.Statements, ";\n\n"))
	return err
}

func (a *app) plan(ctx context.Context, m migration) (sqlstore.MigrationPlan, error) {
	opts := a.migrationOptions(m)
	if m.from != noVersion {
		d, err := database.DialectOf(a.database)
		if err != nil {
			return sqlstore.MigrationPlan{}, usageError{fmt.Errorf("--database: %w", err)}
		}
		return sqlstore.PlanFrom(m.from, d, opts...)
	}
	db, err := a.openSQL(database.Options{})
	if errors.Is(err, fs.ErrNotExist) { // a file of SQLite, which a plan does not make
		return sqlstore.PlanFrom(0, sqlstore.SQLite(), opts...)
	}
	if err != nil {
		return sqlstore.MigrationPlan{}, err
	}
	defer func() { _ = db.Close() }()
	plan, err := sqlstore.Plan(ctx, db.Write, db.Dialect, opts...)
	if err != nil {
		return plan, fmt.Errorf("--database: %w", err)
	}
	return plan, nil
}

var roles = map[string]sqlstore.Role{"service": sqlstore.RoleService, "operator": sqlstore.RoleOperator, "reader": sqlstore.RoleReader}

func (a *app) storeGrants() *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use:   "grants --for service|operator|reader USER",
		Short: "Print the GRANTs that a user of the database needs",
		Long: `Print the GRANTs that a user of --database needs, and run nothing. Run them as the
user who has migrated.

  service   a service, also with the sweeper and the console inside
  operator  idemctl, or a process that only sweeps
  reader    "record show", "record list", and the view of the records

USER is a role of PostgreSQL, or an account of MySQL or MariaDB such as payments or
payments@10.0.0.5. A file of SQLite has no users.`,
		Example: `  idemctl store grants --for service payments | psql "$IDEMCTL_DATABASE"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			of, ok := roles[role]
			switch {
			case a.database == "":
				return wrongUse("store grants needs --database or IDEMCTL_DATABASE")
			case !ok:
				return wrongUse("--for %q, want service, operator or reader", role)
			}
			db, err := a.openSQL(database.Options{})
			if err != nil {
				return err
			}
			defer func() { _ = db.Close() }()
			ctx, cancel := context.WithTimeout(cmd.Context(), connectTimeout)
			defer cancel()
			list, err := sqlstore.Grants(ctx, db.Write, db.Dialect, of, args[0], a.migrationOptions(migration{wait: time.Second})...)
			if err != nil {
				return fmt.Errorf("--database: %w", err)
			}
			for _, s := range list {
				if a.json {
					err = writeJSON(a.stdout, map[string]string{"sql": s})
				} else {
					_, err = fmt.Fprintf(a.stdout, "%s;\n", s)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "for", "", "service, operator or reader")
	return cmd
}
