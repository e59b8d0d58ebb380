package repository

import (
	"bytes"
	"cmp"
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

// layers are the folders of the module, the lowest first. A package imports its own
// folder and the layers below. Where two entries match, the longer one counts. So
// adapters are chosen one by one, no import ships a server or a command to the
// users of the library, and what two folders share lies below both.
var layers = [][]string{
	{"crashtest", "internal/background", "internal/hostport", "internal/leaseclock", "internal/uuid", "internal/tlsfiles", "internal/tlshint", "tokenstore/sql/dialect"},
	{"internal/sqldialect", "internal/sqlpipeline", "internal/sqllocks"},
	{"tokenstore/sql/pgx/internal"},
	{"internal/redisserver"},
	{"internal/redisscript", "internal/redispipe"},
	{"idem/internal"},
	{"idem/guarantee"},
	{"idem/driver"},
	{"idem/driver/rules", "idem/telemetry", "internal/leasing"},
	{"idem"},
	{"internal/operate", "internal/routes", "internal/redislocks"},
	{"middleware/internal", "middleware/grpc/proto", "lock/zookeeper/internal/wire", "lock/zookeeper/internal/listener"},
	{"middleware/exchange", "lock/zookeeper/internal/session"},
	{"lock/zookeeper/internal"},
	{"lock/memory", "lock/redis", "lock/sql", "lock/zookeeper", "tokenstore/memory", "tokenstore/redis", "tokenstore/sql", "tokenstore/sealed",
		"middleware/http", "middleware/gin", "middleware/grpc", "sweeper", "fence"},
	{"lock/zookeeper/recipes", "lock/zookeeper/queue", "internal/database", "observe", "engine/internal"},
	{"engine/redis", "engine/sql", "engine/zookeeper"},
	{"idem/idemtest", "middleware/grpc/internal/testproto", "console", "observe/prometheus"},
	{"middleware/exchange/exchangetest"},
	{"middleware/grpc/grpctest"},
	{"internal/test/testserver", "internal/test/locktest", "internal/test/documents", "internal/database/scratch", "internal/test/enginetest"},
	{"internal/tools"},
	{"lock/zookeeper/internal/zktest"},
	{"lock/zookeeper/internal/recipetest"},
	{"cmd/idemctl/internal/cli"},
	{"cmd/idemctl/internal/servers", "cmd/idemctl/internal/answer"},
	{"cmd/idemctl/internal/record", "cmd/idemctl/internal/store", "cmd/idemctl/internal/token", "cmd/idemctl/internal/recipe", "cmd/idemctl/internal/doctor"},
	{"cmd", "example-payments", "examples/clients"},
	{"example-payments/kit"},
	{"tests", "bench", "lock/zookeeper/histories"},
}

const belowOnly = "a package knows the packages below it, and those above it not at all"

// Words for whole groups of packages in the rules.
const (
	standardLibrary = "the standard library"
	thisModule      = "this module"
)

const crashtestOnly = "the kit tests services without Idemkeeper, and each folder needs no more than the client that it wraps"

// onlyRules say what a folder may import.
var onlyRules = []struct {
	from   string
	tests  bool // holds for test files too
	only   []string
	reason string
}{
	{"idem", false, []string{standardLibrary, "idem"},
		"an adopter of the engine takes on no dependency but those of the chosen adapters, and the guarantee can be reviewed in one place"},
	{"idem", true, []string{standardLibrary, thisModule, "go.uber.org/goleak"},
		"the engine is tested against every failure in memory; a client library would hide what the interfaces leave out"},
	{"sweeper", false, []string{standardLibrary, "idem", "internal/routes", "sweeper"},
		"the sweeper works with every store and lock service through interfaces"},
	{"console", false, []string{standardLibrary, "idem", "internal/operate", "internal/routes", "sweeper", "console"},
		"any service mounts the console, whatever its lock, store and framework"},
	{"crashtest/redis", false, []string{standardLibrary, "crashtest", "github.com/redis"}, crashtestOnly},
	{"crashtest/grpc", false, []string{standardLibrary, "crashtest", "google.golang.org/grpc", "google.golang.org/protobuf"}, crashtestOnly},
	{"crashtest/zookeeper", false, []string{standardLibrary, "crashtest"}, crashtestOnly},
	{"crashtest/pgx", false, []string{standardLibrary, "crashtest", "github.com/jackc/pgx"}, crashtestOnly},
	{"observe/prometheus", false, []string{standardLibrary, "observe", "go.opentelemetry.io/otel", "github.com/prometheus"},
		"it adds an exporter to observe, and nothing else"},
	{"observe", false, []string{standardLibrary, "idem", "sweeper", "observe", "go.opentelemetry.io/otel", "github.com/prometheus"},
		"the library works without a way to log, and a way to log works without the adapters"},
	{"engine/internal", false, []string{standardLibrary, "idem", "tokenstore/sealed"},
		"it is linked with every set-up"},
	{"engine/redis", false, []string{standardLibrary, "engine/internal", "idem", "lock/redis", "tokenstore/redis", "github.com/redis"},
		"a service on Redis must not link the client of ZooKeeper"},
	{"engine/sql", false, []string{standardLibrary, "engine/internal", "idem", "lock/sql", "tokenstore/sql"},
		"a service on SQL must not link the clients of Redis and ZooKeeper"},
	{"engine/zookeeper", false, []string{standardLibrary, "engine/internal", "idem", "lock/zookeeper", "tokenstore/redis", "github.com/redis"},
		"a service with its locks in ZooKeeper must not link other locks"},
	{"internal/test/testserver", false, []string{standardLibrary, "internal/test/testserver", "github.com/redis"},
		"a fault that the library and its test servers share would never show"},
}

// sqlDrivers are the drivers of the databases that tokenstore/sql knows.
var sqlDrivers = []string{"github.com/jackc/pgx", "github.com/go-sql-driver", "modernc.org/sqlite"}

// confinedRules say which folders may import a package.
var confinedRules = []struct {
	packages []string
	tests    bool // holds for test files too
	to       []string
	reason   string
}{
	{[]string{"github.com/gin-gonic"}, false, []string{"middleware/gin", "example-payments"},
		"users of net/http or gRPC must not download Gin"},
	{[]string{"github.com/gin-gonic"}, true, []string{"middleware/gin", "example-payments", "tests"},
		"users of net/http or gRPC must not download Gin"},
	{[]string{"google.golang.org/grpc"}, true, []string{"middleware/grpc", "crashtest/grpc", "cmd/idemctl", "example-payments", "tests", "bench"},
		"users of net/http or Gin must not download gRPC"},
	{[]string{"github.com/redis"}, true, []string{"crashtest/redis", "tokenstore/redis", "lock/redis", "internal/redisscript", "internal/redispipe", "internal/redisserver", "internal/redislocks", "engine/redis", "engine/zookeeper", "example-payments", "cmd", "internal/test", "tests", "bench"},
		"a service without Redis must not link its client"},
	{[]string{"github.com/go-zookeeper"}, true, []string{"lock/zookeeper", "internal/test", "example-payments/kit", "tests", "bench"},
		"its connection silently swaps sessions, and only lock/zookeeper knows how to hold one"},
	{sqlDrivers, true, []string{"crashtest/pgx", "tokenstore/sql/pgx", "internal/database", "example-payments", "cmd", "tests", "bench"},
		"the application chooses the SQL driver, and what a test imports is in the graph of every user"},
	{[]string{"github.com/anishathalye"}, true, []string{"lock/zookeeper/histories"},
		"what a test imports is in the graph of every user"},
	{[]string{"github.com/spf13"}, true, []string{"cmd"},
		"a command line is no part of a library"},
	{[]string{"internal/database"}, false, []string{"internal/database", "cmd", "example-payments", "tests", "bench"},
		"it links every SQL driver"},
	{[]string{"observe"}, false, []string{"observe", "cmd", "example-payments", "tests", "bench"},
		"a service chooses itself how it logs"},
	{[]string{"go.opentelemetry.io", "github.com/prometheus"}, true, []string{"observe", "example-payments", "tests", "bench"},
		"a service chooses itself how it is measured"},
	{[]string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/contrib", "github.com/prometheus"}, false,
		[]string{"observe/prometheus", "example-payments"}, "a service chooses its own providers and exporters"},
	{[]string{"go.uber.org/goleak", "github.com/alicebob"}, false, nil,
		"a service must not link the libraries of tests"},
	{[]string{"idem/idemtest", "middleware/exchange/exchangetest", "middleware/grpc/grpctest", "middleware/grpc/internal/testproto", "lock/zookeeper/internal/zktest", "lock/zookeeper/internal/recipetest"}, false,
		[]string{"idem/idemtest", "middleware/exchange/exchangetest", "middleware/grpc/grpctest", "middleware/grpc/internal/testproto", "lock/zookeeper/internal/zktest", "lock/zookeeper/internal/recipetest"},
		"a service must not link the support of tests"},
	{[]string{"example-payments/kit", "internal/database/scratch"}, false, []string{"example-payments/kit", "internal/database/scratch", "tests"},
		"a program must not link the support of tests"},
	{[]string{"crashtest"}, false, []string{"crashtest"}, "a service must not link the support of tests"},
	{[]string{"internal/test"}, false, []string{"internal/test", "internal/tools", "example-payments/kit", "lock/zookeeper/internal/zktest", "lock/zookeeper/internal/recipetest", "tests", "bench"},
		"what only tests share lies below internal/test, and neither the library nor a program uses it"},
}

// brokenRules returns the reason of each rule that an import breaks. Paths within
// the module are relative to it.
func brokenRules(from, to string, test bool) (reasons []string) {
	here, there := layerOf(from), layerOf(to)
	if !test && there.depth >= 0 && here.folder != there.folder && here.depth <= there.depth {
		reasons = append(reasons, belowOnly)
	}
	for _, r := range onlyRules {
		if within(from, r.from) && (r.tests || !test) && !inGroups(to, r.only) {
			reasons = append(reasons, r.reason)
		}
	}
	for _, r := range confinedRules {
		if within(to, r.packages...) && (r.tests || !test) && !within(from, r.to...) {
			reasons = append(reasons, r.reason)
		}
	}
	return reasons
}

// layer is where a folder stands in the table of layers.
type layer struct {
	folder string
	depth  int // from the lowest one, or -1 for a package outside of the table
}

func layerOf(path string) layer {
	found := layer{depth: -1}
	for depth, folders := range layers {
		for _, f := range folders {
			if within(path, f) && len(f) > len(found.folder) {
				found = layer{f, depth}
			}
		}
	}
	return found
}

func inGroups(path string, groups []string) bool {
	first, _, _ := strings.Cut(path, "/")
	ours := layerOf(path).depth >= 0
	return within(path, groups...) || slices.Contains(groups, thisModule) && ours ||
		slices.Contains(groups, standardLibrary) && !ours && !strings.Contains(first, ".")
}

// within reports whether path is one of the folders or below one.
func within(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func relative(path string) string { return strings.TrimPrefix(path, module+"/") }

func TestImports(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		from := relative(p.ImportPath)
		if layerOf(from).depth < 0 && from != module {
			t.Errorf("the table of layers does not name %s", from)
		}
		for test, imports := range map[bool][]string{false: p.Imports, true: slices.Concat(p.TestImports, p.XTestImports)} {
			slices.Sort(imports)
			for _, to := range slices.Compact(imports) {
				for _, reason := range brokenRules(from, relative(to), test) {
					t.Errorf("%s imports %s (in a test file: %v), but %s", from, relative(to), test, reason)
				}
			}
		}
	}
}

// TestImportsAreDocumented wants a line in docs/dependencies.md for each module
// that is imported.
func TestImportsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range listPackages(t) {
		for _, to := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if to = relative(to); !inGroups(to, []string{standardLibrary, thisModule}) && !documented(string(text), to) {
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

// Each rule notices the imports that it bans, and no others.
func TestImportsRulesNotice(t *testing.T) {
	t.Parallel()
	want := func(from, to string, test bool, reason string, want bool) {
		t.Helper()
		if got := slices.Contains(brokenRules(from, to, test), reason); got != want {
			t.Errorf("%s imports %s (in a test file: %v): %v, want %v, because %s", from, to, test, got, want, reason)
		}
	}
	examples := map[string]string{standardLibrary: "crypto/sha256", thisModule: "idem/idemtest"}
	for _, r := range onlyRules {
		want(r.from+"/x", "example.com/other", false, r.reason, true)
		want(r.from, "example.com/other", true, r.reason, r.tests)
		for _, group := range r.only {
			want(r.from, cmp.Or(examples[group], group), false, r.reason, false)
		}
	}
	for _, r := range confinedRules {
		for _, p := range r.packages {
			want("elsewhere", p+"/x", false, r.reason, true)
			for _, from := range r.to {
				want(from+"/x", p, r.tests, r.reason, false)
			}
		}
	}
	folders := slices.Concat(layers...)
	for _, from := range folders {
		for _, to := range folders {
			above := layerOf(from).depth > layerOf(to).depth
			want(from+"/x", to, false, belowOnly, from != to && !above && layerOf(from+"/x").folder != to)
			want(from, to, true, belowOnly, false)
		}
	}
}

// listPackages asks the go command for the packages in the workspace, those that do
// not build included.
func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "work")
	cmd.Dir = "../.."
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
