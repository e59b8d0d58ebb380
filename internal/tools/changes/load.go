package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// source is a package with its types.
type source struct {
	dir, name string
	fset      *token.FileSet
	files     []*ast.File // without the generated ones
	info      *types.Info
}

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
	DepOnly                       bool
}

// load reads a package below root. The go command compiles what it imports, and that has the types.
func load(ctx context.Context, root, pkg string) (*source, error) {
	out, err := command(ctx, root, "list", "-export", "-deps", "-json=Dir,ImportPath,Name,Export,GoFiles,DepOnly", pkg)
	if err != nil {
		return nil, err
	}
	var target listed
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			target = p
		}
	}
	s := &source{dir: target.Dir, name: target.Name, fset: token.NewFileSet(),
		info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}}
	var all []*ast.File
	for _, name := range target.GoFiles {
		f, err := parser.ParseFile(s.fset, filepath.Join(target.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		if !ast.IsGenerated(f) {
			s.files = append(s.files, f)
		}
	}
	conf := types.Config{Importer: importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	_, err = conf.Check(target.ImportPath, s.fset, all, s.info)
	return s, err
}

// command runs the go command and returns its output.
func command(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, tail(errs.Bytes()))
	}
	return out, nil
}
