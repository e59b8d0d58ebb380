// Package tests holds the tests that look at more than one package.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/idemkeeper/idemkeeper"

// importRule bans imports. Paths within the module are relative to it, those of
// other modules are whole.
type importRule struct {
	name   string
	reason string
	tests  bool // holds for test files too
	banned func(from, to string) bool
}

// importRules are the rules that every package of the module has to keep.
var importRules = []importRule{
	{
		name:   "the engine imports only the standard library",
		reason: "whoever adopts the engine takes on no dependency but those of the adapters they choose, and the guarantee can be reviewed in one place",
		banned: func(from, to string) bool { return within(from, "idem") && !standard(to) && !within(to, "idem") },
	},
	{
		name:   "tests of the engine need no server and no framework",
		reason: "the engine is tested against every failure in memory; a client library there would hide what the interfaces do not say",
		tests:  true,
		banned: func(from, to string) bool {
			return within(from, "idem") && !standard(to) && !ours(to) && !within(to, "go.uber.org/goleak")
		},
	},
	{
		name:   "the sweeper imports the engine alone",
		reason: "it works with every store and lock service; what it needs of one of them comes as an interface",
		banned: func(from, to string) bool {
			return within(from, "sweeper") && !standard(to) && !within(to, "idem", "sweeper")
		},
	},
	{
		name:   "only a service itself imports observe",
		reason: "how a service logs is its own choice, and the library works without",
		banned: func(from, to string) bool {
			return within(to, "observe") && library(from) && !within(from, "observe") || within(from, "observe") && !standard(to) && !within(to, "idem", "observe")
		},
	},
	{
		name:   "no adapter imports another",
		reason: "adapters are chosen one by one; what two of them share belongs into idem, or into an internal package beside them",
		banned: func(from, to string) bool {
			a, b := adapter(from), adapter(to)
			if a == "" || b == "" || a == b || testSupport(from) {
				return false
			}
			folder, _, _ := strings.Cut(a, "/")
			return b != folder+"/internal"
		},
	},
	{
		name:   "the library does not know its users",
		reason: "the sample, the command line and the test servers are built on the library; an import the other way would ship them to everybody",
		banned: func(from, to string) bool {
			return library(from) && within(to, "example-payments", "cmd", "tests", "internal/testserver", "internal/tools")
		},
	},
	{
		name:   "the test servers know nothing of the library",
		reason: "a fault that the library and its test bench share would never show",
		banned: func(from, to string) bool {
			return within(from, "internal/testserver") && ours(to) && !within(to, "internal/testserver")
		},
	},
	confine("gin", "users of net/http or gRPC must not download Gin", []string{"github.com/gin-gonic"},
		"middleware/gin", "example-payments"),
	confine("grpc", "users of net/http or Gin must not download gRPC", []string{"google.golang.org/grpc"},
		"middleware/grpc", "example-payments", "tests", "bench"),
	confine("go-redis", "who runs without Redis must not link its client", []string{"github.com/redis"},
		"tokenstore/redis", "lock/redis", "example-payments", "cmd", "internal/testserver", "tests", "bench"),
	confine("zk", "its connection silently swaps sessions; only lock/zookeeper knows how to hold it", []string{"github.com/go-zookeeper"},
		"lock/zookeeper", "internal/testserver", "tests", "bench"),
	confine("SQL drivers", "tokenstore/sql works on database/sql; which driver is linked is the application's choice",
		[]string{"github.com/jackc/pgx", "modernc.org/sqlite"},
		"tokenstore/sql", "lock/postgres", "example-payments", "cmd", "internal/testserver", "tests", "bench"),
	confine("cobra", "a command line is no part of a library", []string{"github.com/spf13"},
		"cmd"),
	{
		name:   "test libraries stay in tests",
		reason: "they must not be linked into a service",
		banned: func(from, to string) bool {
			return within(to, "go.uber.org/goleak", "github.com/alicebob") || testSupport(to) && !testSupport(from)
		},
	},
}

// confine lets only some folders import a library, in tests too.
func confine(name, reason string, library []string, folders ...string) importRule {
	return importRule{
		name:   name + " only in " + strings.Join(folders, ", "),
		reason: reason,
		tests:  true,
		banned: func(from, to string) bool { return within(to, library...) && !within(from, folders...) },
	}
}

// within reports whether path is one of the folders or below one.
func within(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && !ours(path)
}

// ours tells the module's own packages by their first folder.
func ours(path string) bool {
	return library(path) || within(path, "internal/testserver", "internal/tools", "example-payments", "cmd", "tests", "bench")
}

// library is what others import.
func library(path string) bool {
	return within(path, "idem", "lock", "tokenstore", "middleware", "sweeper", "observe", "internal/background", "internal/leaseclock", "internal/redisscript", "internal/redisserver", "internal/uuid")
}

// adapter returns the adapter that a package is part of, such as "lock/redis",
// or "" for a package of no adapter.
func adapter(path string) string {
	parts := strings.SplitN(path, "/", 3)
	if len(parts) < 2 || !within(path, "lock", "tokenstore", "middleware") {
		return ""
	}
	return parts[0] + "/" + parts[1]
}

// testSupport tells packages of the library that exist for tests only, and may
// put adapters together: idem/idemtest, and internal ones named like it.
func testSupport(path string) bool {
	return within(path, "idem/idemtest") || library(path) && strings.Contains(path, "/internal/") && strings.HasSuffix(path, "test")
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// broken returns a line for each import that breaks a rule.
func broken(packages []goPackage) []string {
	var lines []string
	for _, p := range packages {
		from := relative(p.ImportPath)
		for _, rule := range importRules {
			imports := p.Imports
			if rule.tests {
				imports = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			}
			slices.Sort(imports)
			for _, to := range slices.Compact(imports) {
				if rule.banned(from, relative(to)) {
					lines = append(lines, from+" imports "+relative(to)+": "+rule.name+", since "+rule.reason)
				}
			}
		}
	}
	return lines
}

func relative(path string) string { return strings.TrimPrefix(path, module+"/") }

func TestImports(t *testing.T) {
	t.Parallel()
	packages := listPackages(t)
	for _, line := range broken(packages) {
		t.Error(line)
	}
}

// TestImportsOfUnknownFolders keeps the rules complete: a new top folder has
// to be named in them.
func TestImportsOfUnknownFolders(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if from := relative(p.ImportPath); from != module && !ours(from) {
			t.Errorf("the import rules do not say what %s is", from)
		}
	}
}

// TestImportsAreDocumented wants a line in docs/dependencies.md for each module
// that is imported.
func TestImportsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range listPackages(t) {
		for _, to := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if to = relative(to); !standard(to) && !ours(to) && !documented(string(text), to) {
				t.Errorf("%s imports %s, of which docs/dependencies.md has no line", relative(p.ImportPath), to)
			}
		}
	}
}

// documented looks for the module of a package: in backquotes, its path is a
// prefix of the package's.
func documented(text, path string) bool {
	for i, quoted := range strings.Split(text, "`") {
		if i%2 == 1 && strings.Contains(quoted, "/") && within(path, quoted) {
			return true
		}
	}
	return false
}

// Each rule has to notice what it is there for.
func TestImportsRulesNotice(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from, to string
		test     bool   // imported by a test file
		rule     string // the rule that has to complain, "" for none
	}{
		{"idem", "github.com/google/uuid", false, "the engine imports only the standard library"},
		{"idem", "golang.org/x/sync/errgroup", false, "the engine imports only the standard library"},
		{"idem", module + "/lock/memory", false, "the engine imports only the standard library"},
		{"idem/idemtest", module + "/internal/testserver", false, "the library does not know its users"},
		{"idem", "github.com/google/uuid", true, "tests of the engine need no server and no framework"},
		{"idem", module + "/lock/memory", true, ""},
		{"idem", "go.uber.org/goleak", true, ""},
		{"idem/idemtest", module + "/idem", false, ""},
		{"idem", "crypto/sha256", false, ""},
		{"middleware/gin", module + "/middleware/http", false, "no adapter imports another"},
		{"middleware/gin", module + "/lock/memory", false, "no adapter imports another"},
		{"lock/redis", module + "/tokenstore/redis", false, "no adapter imports another"},
		{"lock/zookeeper/recipe", module + "/lock/zookeeper", false, ""},
		{"middleware/gin", module + "/middleware/internal/body", false, ""},
		{"middleware/gin", module + "/lock/internal/x", false, "no adapter imports another"},
		{"middleware/http", module + "/lock/memory", true, ""},
		{"middleware/internal/exchangetest", module + "/lock/memory", false, ""},
		{"middleware/internal/exchange", module + "/lock/memory", false, "no adapter imports another"},
		{"middleware/http", module + "/middleware/internal/exchangetest", false, "test libraries stay in tests"},
		{"middleware/http", module + "/middleware/internal/exchangetest", true, ""},
		{"lock/redis", module + "/idem/idemtest", false, "test libraries stay in tests"},
		{"middleware/http", module + "/example-payments/ledger", false, "the library does not know its users"},
		{"tokenstore/redis", module + "/cmd/idemctl", false, "the library does not know its users"},
		{"tokenstore/redis", module + "/internal/testserver", true, ""},
		{"internal/testserver", module + "/idem", false, "the test servers know nothing of the library"},
		{"middleware/http", "github.com/gin-gonic/gin", false, "gin only in"},
		{"middleware/http", "github.com/gin-gonic/gin", true, "gin only in"},
		{"middleware/gin", "github.com/gin-gonic/gin/binding", false, ""},
		{"middleware/http", "google.golang.org/grpc/codes", false, "grpc only in"},
		{"middleware/grpc", "google.golang.org/grpc/codes", false, ""},
		{"tests", "google.golang.org/grpc/codes", true, ""},
		{"lock/zookeeper", "github.com/redis/go-redis/v9", true, "go-redis only in"},
		{"tokenstore/redis", "github.com/redis/go-redis/v9", false, ""},
		{"cmd/idemctl", "github.com/go-zookeeper/zk", false, "zk only in"},
		{"lock/zookeeper", "github.com/go-zookeeper/zk", false, ""},
		{"tokenstore/redis", "modernc.org/sqlite", true, "SQL drivers only in"},
		{"example-payments", "github.com/spf13/cobra", false, "cobra only in"},
		{"lock/redis", "go.uber.org/goleak", false, "test libraries stay in tests"},
		{"lock/redis", "github.com/alicebob/miniredis/v2", true, ""},
	}
	for _, tt := range tests {
		p := goPackage{ImportPath: module + "/" + tt.from}
		if tt.test {
			p.XTestImports = []string{tt.to}
		} else {
			p.Imports = []string{tt.to}
		}
		lines := broken([]goPackage{p})
		noticed := slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, ": "+tt.rule) })
		if (tt.rule == "" && len(lines) > 0) || (tt.rule != "" && !noticed) {
			t.Errorf("broken(%s imports %s, test %v) = %q, want %q", tt.from, tt.to, tt.test, lines, tt.rule)
		}
	}
}

// listPackages asks the go command for the module's packages, those that do
// not build included.
func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list = %v, want packages\n%s", err, stderr.String())
	}
	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list printed %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) == 0 {
		t.Fatal("go list printed no package")
	}
	return packages
}
