package store

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

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
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

// migrations are the commands about the tables of a store in SQL.
type migrations struct {
	io       *cli.Streams
	database *servers.Database
}

func (c *migrations) migrateCommand() *cobra.Command {
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
			case c.database.URL == "":
				return cli.WrongUse("store migrate needs --database or IDEMCTL_DATABASE")
			case m.from != noVersion && !m.print:
				return cli.WrongUse("--from is for --print")
			case m.from < noVersion || m.from > sqlstore.SchemaVersion:
				return cli.WrongUse("--from %d, want 0 to %d", m.from, sqlstore.SchemaVersion)
			case m.wait <= 0:
				return cli.WrongUse("--lock-timeout %v is not positive", m.wait)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), migrateTimeout)
			defer cancel()
			if m.print {
				return c.printMigration(ctx, m)
			}
			return c.migrate(ctx, m)
		},
	}
	cmd.Flags().BoolVar(&m.print, "print", false, "print the SQL, and run nothing")
	cmd.Flags().IntVar(&m.from, "from", noVersion, "with --print: the version of the tables, 0 for none; by default that of the database")
	cmd.Flags().DurationVar(&m.wait, "lock-timeout", time.Second, "how long a statement, and every payment behind it, waits for a table in use")
	return cmd
}

// options are the options of the store for a migration.
func (c *migrations) options(m migration) []sqlstore.Option {
	return append(c.database.TableOptions(slog.New(slog.DiscardHandler)), sqlstore.WithMigrationWait(m.wait))
}

// migratedRow is a migration in JSON.
type migratedRow struct {
	Version int      `json:"schema_version"`
	From    int      `json:"from_version"`
	Made    []string `json:"made,omitempty"`
	Changed []string `json:"changed,omitempty"`
}

func (c *migrations) migrate(ctx context.Context, m migration) error {
	db, err := c.database.Open(database.Options{Create: true})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	opts := c.options(m)
	plan, err := sqlstore.Plan(ctx, db.Write, db.Dialect, opts...)
	if err == nil {
		err = sqlstore.Migrate(ctx, db.Write, db.Dialect, opts...)
	}
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	if c.io.JSON {
		return c.io.WriteJSON(migratedRow{plan.To, plan.From, plan.Made, plan.Changed})
	}
	var text strings.Builder
	for _, name := range plan.Made {
		fmt.Fprintf(&text, "made %s\n", name)
	}
	for _, name := range plan.Changed {
		fmt.Fprintf(&text, "changed %s\n", name)
	}
	fmt.Fprintf(&text, "the tables in %s have version %d\n", operate.OneLine(db.Name), plan.To)
	if _, err := io.WriteString(c.io.Out, text.String()); err != nil || len(plan.Made) == 0 || sqldialect.Of(db.Dialect).File {
		return err
	}
	_, err = fmt.Fprintln(c.io.Err, `services with users of their own need rights on them: "idemctl store grants --for service USER" prints the GRANTs`)
	return err
}

// printMigration prints what migrate would run.
func (c *migrations) printMigration(ctx context.Context, m migration) error {
	plan, err := c.plan(ctx, m)
	if err != nil {
		return err
	}
	if c.io.JSON {
		for _, s := range plan.Statements {
			if err := c.io.WriteJSON(map[string]string{"sql": s}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(plan.Statements) == 0 {
		_, err := fmt.Fprintf(c.io.Err, "the tables have version %d, and nothing is to be done\n", plan.To)
		return err
	}
	_, err = fmt.Fprintf(c.io.Out, "-- Idemkeeper: the tables of the token store, from version %d to %d.\n\n%s;\n", plan.From, plan.To, strings.Join(plan.Statements, ";\n\n"))
	return err
}

func (c *migrations) plan(ctx context.Context, m migration) (sqlstore.MigrationPlan, error) {
	opts := c.options(m)
	d, err := database.DialectOf(c.database.URL)
	if err != nil {
		return sqlstore.MigrationPlan{}, cli.UsageError{Err: fmt.Errorf("--database: %w", err)}
	}
	if m.from != noVersion {
		return sqlstore.PlanFrom(m.from, d, opts...)
	}
	db, err := c.database.Open(database.Options{})
	if errors.Is(err, fs.ErrNotExist) && sqldialect.Of(d).File { // which a plan does not make
		return sqlstore.PlanFrom(0, d, opts...)
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

func (c *migrations) grantsCommand() *cobra.Command {
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
			case c.database.URL == "":
				return cli.WrongUse("store grants needs --database or IDEMCTL_DATABASE")
			case !ok:
				return cli.WrongUse("--for %q, want service, operator or reader", role)
			}
			db, err := c.database.Open(database.Options{})
			if err != nil {
				return err
			}
			defer func() { _ = db.Close() }()
			ctx, cancel := context.WithTimeout(cmd.Context(), servers.ConnectTimeout)
			defer cancel()
			list, err := sqlstore.Grants(ctx, db.Write, db.Dialect, of, args[0], c.options(migration{wait: time.Second})...)
			if err != nil {
				return fmt.Errorf("--database: %w", err)
			}
			for _, s := range list {
				if c.io.JSON {
					err = c.io.WriteJSON(map[string]string{"sql": s})
				} else {
					_, err = fmt.Fprintf(c.io.Out, "%s;\n", s)
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
