package repository

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// snippetImports are the packages that a fragment may use without an import.
var snippetImports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "json": "encoding/json", "http": "net/http", "log": "log", "slog": "log/slog",
	"os": "os", "sql": "database/sql", "time": "time",
	"idem": module + "/idem", "driver": module + "/idem/driver", "telemetry": module + "/idem/telemetry", "guarantee": module + "/idem/guarantee", "zookeeper": module + "/lock/zookeeper", "recipes": module + "/lock/zookeeper/recipes",
	"queue": module + "/lock/zookeeper/queue", "redislock": module + "/lock/redis", "sqllock": module + "/lock/sql", "redisstore": module + "/tokenstore/redis",
	"memorylock": module + "/lock/memory", "memorystore": module + "/tokenstore/memory", "sealed": module + "/tokenstore/sealed",
	"idemredis": module + "/engine/redis", "idemsql": module + "/engine/sql", "idemzk": module + "/engine/zookeeper",
	"sweeper": module + "/sweeper", "observe": module + "/observe",
	"idemhttp": module + "/middleware/http", "idemgin": module + "/middleware/gin", "exchange": module + "/middleware/exchange", "idemgrpc": module + "/middleware/grpc",
	"gin": "github.com/gin-gonic/gin", "grpc": "google.golang.org/grpc", "credentials": "google.golang.org/grpc/credentials",
	"goredis":  "github.com/redis/go-redis/v9",
	"sqlstore": module + "/tokenstore/sql", "dialect": module + "/tokenstore/sql/dialect", "pgxstore": module + "/tokenstore/sql/pgx",
	"pgxpool": "github.com/jackc/pgx/v5/pgxpool", "stdlib": "github.com/jackc/pgx/v5/stdlib",
}

// snippetNames declares what belongs to the reader's own service. A fragment may
// use these names, and declares one anew where it shows its own.
var snippetNames = map[string]string{
	"ctx":            "var ctx context.Context",
	"engine":         "var engine *idem.Engine",
	"locker":         "var locker driver.Locker",
	"store":          "var store driver.Store",
	"db":             "var db *sql.DB",
	"pool":           "var pool *pgxpool.Pool",
	"file":           "var file string",
	"amount":         "var amount int64",
	"merchant":       "var merchant idem.ScopeFunc",
	"authenticate":   "var authenticate gin.HandlerFunc",
	"creds":          "var creds credentials.TransportCredentials",
	"target":         "var target string",
	"createPayment":  "func createPayment(*gin.Context) {}",
	"capturePayment": "func capturePayment(*gin.Context, string, string, driver.Fence) {}", //nolint:dupword // two parameters
}

// Every block of Go in the documents compiles as it is printed, and is
// formatted by gofmt. A block with a package clause is compiled alone. A fragment
// is a list of declarations or of statements. It gets the imports and names above
// that it uses. A block from a file of an example is compiled there.
func TestSnippetsCompile(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay, packages := map[string]string{}, []string{}
	for _, s := range findSnippets(t) {
		if formatted, err := format.Source([]byte(s.code)); err != nil || string(formatted) != s.code {
			t.Errorf("%s is not what gofmt prints (%v)", s.name, err)
		}
		source, err := snippetSource(s.code)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		name := fmt.Sprint("snippet", len(packages))
		file := filepath.Join(dir, name+".go")
		if err := os.WriteFile(file, []byte("//line "+s.name+"\n"+source), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(root, "tests", name, "snippet.go")] = file
		packages = append(packages, "./tests/"+name)
	}
	if len(packages) == 0 {
		t.Fatal("the documents have no Go code")
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build", "-o", os.DevNull, "-overlay", filepath.Join(dir, "overlay.json")}, packages)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go build: %v\n%s", err, out)
	}
}

// snippet is a block of Go in a document.
type snippet struct{ name, code string }

func findSnippets(t *testing.T) (all []snippet) {
	t.Helper()
	for _, p := range pages(t) {
		for _, b := range p.Blocks() {
			if b.Language == "go" && b.From == "" {
				all = append(all, snippet{fmt.Sprintf("%s:%d", p.Path, b.Line), b.Code})
			}
		}
	}
	return all
}

var packageClause = regexp.MustCompile(`(?m)^package \w+$`)

// snippetSource makes a file of a block. Its lines are those of the block.
func snippetSource(code string) (string, error) {
	if packageClause.MatchString(code) {
		return code, nil
	}
	const head = "package p;"
	shown, _ := parser.ParseFile(token.NewFileSet(), "", head+code, parser.ImportsOnly)
	end := 0
	if n := len(shown.Decls); n > 0 {
		end = int(shown.Decls[n-1].End()) - 1 - len(head)
	}
	imports, body := code[:end], code[end:]
	if end > 0 {
		imports += ";"
	}
	file, err := parser.ParseFile(token.NewFileSet(), "", head+imports+body, 0)
	if err != nil { // the block holds statements
		file, err = parser.ParseFile(token.NewFileSet(), "", head+imports+"func _() error {"+body+"}", 0)
		if err != nil {
			return "", err
		}
		uses := ""
		for _, name := range definedBy(file.Decls[len(file.Decls)-1].(*ast.FuncDecl).Body) {
			uses += "_ = " + name + "\n" //nolint:perfsprint // a few short lines
		}
		body = "func _() error {" + body + uses + "return nil\n}\n"
	}
	declared := map[string]bool{}
	for name := range file.Scope.Objects {
		declared[name] = true
	}
	for _, i := range file.Imports {
		declared[path.Base(strings.Trim(i.Path.Value, `"`))] = true
		if i.Name != nil {
			declared[i.Name.Name] = true
		}
	}
	used := namesIn(file)
	if !used["gin"] && used["grpc"] && used["authenticate"] {
		body, declared["authenticate"] = body+"var authenticate grpc.UnaryServerInterceptor\n", true
	}
	for _, name := range slices.Sorted(maps.Keys(snippetNames)) {
		if used[name] && !declared[name] {
			body += snippetNames[name] + "\n" //nolint:perfsprint // as above
			maps.Copy(used, namesIn(must(parser.ParseFile(token.NewFileSet(), "", head+snippetNames[name], 0))))
		}
	}
	added := ""
	for _, name := range slices.Sorted(maps.Keys(snippetImports)) {
		if used[name] && !declared[name] {
			added += "import " + name + " " + strconv.Quote(snippetImports[name]) + ";" //nolint:perfsprint // as above
		}
	}
	return head + added + imports + body, nil
}

// namesIn returns every identifier of a file, except those behind a dot.
func namesIn(file *ast.File) map[string]bool {
	names := map[string]bool{}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			names[n.Name] = true
		case *ast.SelectorExpr:
			ast.Inspect(n.X, visit)
			return false
		}
		return true
	}
	ast.Inspect(file, visit)
	return names
}

// definedBy returns the variables that a list of statements defines.
func definedBy(block *ast.BlockStmt) (names []string) {
	for _, statement := range block.List {
		if a, ok := statement.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, left := range a.Lhs {
				if id := left.(*ast.Ident); id.Name != "_" {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
