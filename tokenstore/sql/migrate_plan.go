package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// migrationFiles make the tables. They have a folder for each database, and a file in it for each version.
//
//go:embed migrations
var migrationFiles embed.FS

// MigrationPlan is what [Migrate] does to tables.
type MigrationPlan struct {
	From, To int // versions of the tables, 0 without tables
	// Statements are in the order in which they run, without semicolons. Empty if the tables are up to date.
	Statements []string
	// Made and Changed are the names of tables and views.
	Made, Changed []string
}

// Plan returns what Migrate would do now, and changes nothing. The error wraps ErrNewerSchema, or is one
// of the database.
func Plan(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) (MigrationPlan, error) {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return MigrationPlan{}, err
	}
	n := cfg.names()
	version, err := n.version(ctx, db)
	if err != nil {
		return MigrationPlan{}, n.explain(ctx, db, err)
	}
	return PlanFrom(version, d, opts...)
}

// PlanFrom is Plan for tables of a version, without a database.
func PlanFrom(version int, d dialect.Dialect, opts ...Option) (MigrationPlan, error) {
	cfg, err := configOf(d, opts)
	if err != nil {
		return MigrationPlan{}, err
	}
	n := cfg.names()
	latest := SchemaVersion
	if version < 0 || version > latest {
		return MigrationPlan{}, fmt.Errorf("tokenstore/sql: plan from version %d, want 0 to %d", version, latest)
	}
	p := MigrationPlan{From: version, To: latest}
	for v := version + 1; v <= latest; v++ {
		statements, err := n.statements(v)
		if err != nil {
			return p, err
		}
		p.Statements = append(p.Statements, statements...)
	}
	if len(p.Statements) == 0 {
		return p, nil
	}
	p.named()
	p.Statements = append(append(n.begin(cfg.tableWait), p.Statements...), n.dialect.endMigration...)
	return p, nil
}

var subject = regexp.MustCompile(`^(CREATE|ALTER) (?:OR REPLACE )?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\S+)`)

// named fills Made and Changed.
func (p *MigrationPlan) named() {
	seen := map[string]bool{}
	for _, s := range p.Statements {
		m := subject.FindStringSubmatch(s)
		if m == nil || seen[m[2]] {
			continue
		}
		seen[m[2]] = true
		name := strings.NewReplacer("`", "", `"`, "").Replace(m[2])
		if m[1] == "CREATE" {
			p.Made = append(p.Made, name)
		} else {
			p.Changed = append(p.Changed, name)
		}
	}
}

// statements returns the statements of a migration. The last one notes the version, because MySQL commits each
// statement by itself.
func (n names) statements(version int) ([]string, error) {
	folder := path.Join("migrations", n.dialect.folder)
	entries, err := fs.ReadDir(migrationFiles, folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		if i, _ := strconv.Atoi(number); i != version {
			continue
		}
		text, err := fs.ReadFile(migrationFiles, path.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		clock := cmp.Or(n.dialect.printedClock, "{clock}")
		note := n.sql("INSERT INTO {schema} (version, applied) VALUES (" + strconv.Itoa(version) + ", " + clock + ")")
		return append(splitStatements(n.sql(string(text)), n.dialect.commentsStay), note), nil
	}
	return nil, fmt.Errorf("tokenstore/sql: no migration %d for %s", version, n.dialect.Name)
}

// splitStatements splits a file at the semicolons that end a line, except between two $$. It leaves out comments,
// or only those between statements. A migration has no parameters, and no texts with either.
func splitStatements(text string, comments bool) (list []string) {
	var b strings.Builder
	quoted := false
	for line := range strings.Lines(text) {
		code, comment, _ := strings.Cut(strings.TrimRight(line, " \t\n"), "--")
		code = strings.TrimRight(code, " \t")
		quoted = quoted != (strings.Count(code, "$$")%2 == 1)
		switch end := strings.HasSuffix(code, ";") && !quoted; {
		case end:
			b.WriteString(strings.TrimSuffix(code, ";"))
			list = append(list, b.String())
			b.Reset()
		case comments && comment != "" && b.Len() > 0:
			b.WriteString(strings.TrimRight(line, " \t\n") + "\n")
		case code != "":
			b.WriteString(code + "\n")
		}
	}
	return list
}
