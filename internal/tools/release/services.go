package main

import (
	"context"
	"embed"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed testdata
var sources embed.FS

// services are the small services in testdata.
var services = []string{"gin-sql", "grpc-redis", "http-zookeeper", metrics}

// metrics is the service that exports metrics, so it has modules that the others must not have.
const metrics = "metrics"

// unwanted are modules that no service gets from the library.
var unwanted = []string{"go.opentelemetry.io/", "github.com/prometheus/", "github.com/jackc/", "github.com/go-sql-driver/", "modernc.org/", "github.com/spf13/", "github.com/anishathalye/"}

// service is a service with the modules in its graph.
type service struct {
	name  string
	about string
	all   []string // that go list -m all prints, without the service itself
	added []string // that the same service does not have without Idemkeeper
}

// build builds a service from the proxy. If compile is false, it only looks at the graph.
func (p *proxy) build(ctx context.Context, name string, compile bool) (*service, error) {
	code, err := sources.ReadFile("testdata/" + name + "/main.go")
	if err != nil {
		return nil, err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, code, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	s := &service{name: name, about: strings.TrimSuffix(strings.TrimSpace(parsed.Doc.Text()), ".")}
	var without strings.Builder // the service's own packages
	without.WriteString("package main\n\n")
	requires, own := map[string]string{}, map[string]string{}
	for _, i := range parsed.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		folder, ours := strings.CutPrefix(imported, p.tree.pathOf(".")+"/")
		m := p.tree.requirement(imported)
		switch {
		case ours:
			requires[p.tree.pathOf(p.tree.folderOf(folder+"/"))] = p.version
		case m.Path != "":
			requires[m.Path], own[m.Path] = m.Version, m.Version
			without.WriteString("import _ \"" + imported + "\"\n")
		}
	}
	if s.all, err = p.graph(ctx, name, string(code), requires, compile); err != nil {
		return nil, err
	}
	before, err := p.graph(ctx, name+"-without", without.String()+"\nfunc main() {}\n", own, false)
	if err != nil {
		return nil, err
	}
	for _, m := range s.all {
		if !slices.Contains(before, m) {
			s.added = append(s.added, m)
			if name != metrics && slices.ContainsFunc(unwanted, func(prefix string) bool { return strings.HasPrefix(m, prefix) }) {
				return nil, fmt.Errorf("%s gets %s from the library", name, m)
			}
		}
	}
	return s, nil
}

// graph returns the modules in the graph of a program.
func (p *proxy) graph(ctx context.Context, name, code string, requires map[string]string, compile bool) ([]string, error) {
	dir := filepath.Join(p.dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	var mod strings.Builder
	fmt.Fprintf(&mod, "module example.com/%s\n\ngo %s\n", name, p.tree.mods["."].Go.Version)
	for m, version := range requires {
		fmt.Fprintf(&mod, "\nrequire %s %s\n", m, version)
	}
	for file, text := range map[string]string{"main.go": code, "go.mod": mod.String()} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if _, err := p.command(ctx, dir, "go", "mod", "tidy"); err != nil {
		return nil, err
	}
	if compile {
		if _, err := p.command(ctx, dir, "go", "build", "-o", os.DevNull, "."); err != nil {
			return nil, err
		}
	}
	out, err := p.command(ctx, dir, "go", "list", "-m", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all")
	return strings.Fields(out), err
}

// row is the line of a service in docs/dependencies.md.
func (s *service) row() string {
	return fmt.Sprintf("| %s | %d | %d |", s.about, len(s.all), len(s.added))
}

// names are the modules that the service gets through Idemkeeper.
func (s *service) names() string {
	return strings.ReplaceAll(strings.Join(s.added, ", "), "github.com/", "")
}
