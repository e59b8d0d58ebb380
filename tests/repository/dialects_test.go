package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// dialects are the constants of package dialect.
var dialects = sync.OnceValue(func() (names []dialect.Dialect) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../tokenstore/sql/dialect/dialect.go", nil, 0)
	if err != nil {
		panic(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if text, ok := v.Values[0].(*ast.BasicLit); ok {
				names = append(names, dialect.Dialect(strings.Trim(text.Value, `"`)))
			}
		}
		return true
	})
	return names
})

// Every dialect of package dialect is known wherever a dialect is taken.
func TestDialectsAreComplete(t *testing.T) {
	t.Parallel()
	names := dialects()
	if !slices.Contains(names, dialect.PostgreSQL) {
		t.Fatalf("found the dialects %q, want PostgreSQL among them", names)
	}
	for _, name := range names {
		if sqldialect.Of(name) == nil {
			t.Errorf("%s: internal/sqldialect does not have it", name)
			continue
		}
		if _, err := sqlstore.PlanFrom(0, name); err != nil {
			t.Errorf("%s: sqlstore.PlanFrom(0) = %v, want its tables", name, err)
		}
		if _, err := fence.New(name); err != nil {
			t.Errorf("%s: fence.New() = %v", name, err)
		}
	}
}

// Code asks what a dialect has, and not which one it is. Otherwise a new dialect is a search through
// all of it. Tests may compare.
func TestDialectsAreNotCompared(t *testing.T) {
	t.Parallel()
	for _, root := range []string{"../../tokenstore", "../../fence", "../../lock", "../../cmd", "../../internal/database", "../../internal/sqldialect", "../../example-payments"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			for _, where := range comparisons(file) {
				t.Errorf("%s: a comparison with a dialect: ask for a property of sqldialect.Dialect", files.Position(where))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// comparisons are the places in which a file compares something with a value that is named like a dialect.
func comparisons(file *ast.File) (found []token.Pos) {
	look := func(operands ...ast.Expr) {
		for _, e := range operands {
			if call, ok := e.(*ast.CallExpr); ok {
				e = call.Fun
			}
			if of, ok := e.(*ast.SelectorExpr); ok {
				e = of.Sel
			}
			name, ok := e.(*ast.Ident)
			if ok && (name.Name == "postgres" || slices.ContainsFunc(dialects(), func(d dialect.Dialect) bool { return strings.EqualFold(string(d), name.Name) })) {
				found = append(found, name.Pos())
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				look(n.X, n.Y)
			}
		case *ast.CaseClause:
			look(n.List...)
		}
		return true
	})
	return found
}

// The rule notices each way to compare.
func TestComparisonsWithDialectsAreNoticed(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{
		"d == dialect.MySQL": 1, "dialect.SQLite != d.Name": 1, "d == mysql": 1, "d == sqlstore.MySQL()": 1, "d.File": 0, "len(mysql) == 2": 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() bool { return "+code+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(comparisons(file)); got != want {
			t.Errorf("%s: %d comparisons, want %d", code, got, want)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() { switch d { case dialect.MySQL: } }", 0)
	if got := len(comparisons(file)); err != nil || got != 1 {
		t.Errorf("a switch: %d comparisons, %v, want 1", got, err)
	}
}
