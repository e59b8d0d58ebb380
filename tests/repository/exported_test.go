package repository

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What a user of the library can reach is public: no exported name leads to a type or a method
// of an internal package, whose authors may change it at any time.
func TestExportedNamesReachNothingInternal(t *testing.T) {
	t.Parallel()
	exports, public := exportData(t)
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	w := walk{seen: map[types.Type]bool{}, found: map[string]string{}}
	for _, path := range public {
		pkg, err := imp.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range pkg.Scope().Names() {
			if obj := pkg.Scope().Lookup(name); obj.Exported() {
				w.reach(obj.Type(), strings.TrimPrefix(path, module+"/")+"."+name)
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(w.found)) {
		t.Errorf("%s is internal, and %s leads to it", what, w.found[what])
	}
	if len(w.seen) < 1000 {
		t.Errorf("%d types were looked at, which cannot be all", len(w.seen))
	}
}

// exportData has the files with the types of the packages in the workspace and of all that they import, and
// the paths of the packages that users of the library import.
func exportData(t *testing.T) (files map[string]string, public []string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}} {{.Name}}", "work")
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files = map[string]string{}
	for line := range strings.Lines(string(out)) {
		var path, file, name string
		if n, _ := fmt.Sscan(line, &path, &file, &name); n < 3 {
			continue // unsafe has no file
		}
		files[path] = file
		sample := strings.HasPrefix(path, module+"/example") || strings.HasPrefix(path, module+"/tests") || strings.HasPrefix(path, module+"/bench")
		if strings.HasPrefix(path, module) && name != "main" && !internal(path) && !sample {
			public = append(public, path)
		}
	}
	return files, public
}

// internal reports whether path is an internal package of this repository.
func internal(path string) bool {
	return strings.HasPrefix(path, module) && strings.Contains(path+"/", "/internal/")
}

// walk follows exported names from type to type.
type walk struct {
	seen  map[types.Type]bool
	found map[string]string // what is internal, and a way to it
}

// reach looks at a type that a user gets by the names in way.
func (w *walk) reach(t types.Type, way string) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		w.object(t.Obj(), way)
		w.list(t.TypeArgs(), way)
		w.reach(t.Rhs(), way)
	case *types.Named:
		w.object(t.Obj(), way)
		w.list(t.TypeArgs(), way)
		if t.Obj().Pkg() == nil || !strings.HasPrefix(t.Obj().Pkg().Path(), module) || internal(t.Obj().Pkg().Path()) {
			return
		}
		methods := types.NewMethodSet(types.NewPointer(t))
		for m := range methods.Methods() {
			if m.Obj().Exported() {
				w.object(m.Obj(), way)
				w.reach(m.Type(), way+"."+m.Obj().Name())
			}
		}
		w.reach(t.Underlying(), way)
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.reach(f.Type(), way+"."+f.Name())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				w.reach(m.Type(), way+"."+m.Name())
			}
		}
	case *types.Signature:
		w.reach(t.Params(), way)
		w.reach(t.Results(), way)
	case *types.Tuple:
		for v := range t.Variables() {
			w.reach(v.Type(), way)
		}
	case *types.Map:
		w.reach(t.Key(), way)
		w.reach(t.Elem(), way)
	case interface{ Elem() types.Type }: // of a pointer, slice, array or channel
		w.reach(t.Elem(), way)
	case *types.TypeParam:
		w.reach(t.Constraint(), way)
	}
}

func (w *walk) list(args *types.TypeList, way string) {
	for arg := range args.Types() {
		w.reach(arg, way)
	}
}

// object notes a name of an internal package.
func (w *walk) object(obj types.Object, way string) {
	if obj.Pkg() != nil && internal(obj.Pkg().Path()) {
		what := strings.TrimPrefix(obj.Pkg().Path(), module+"/") + "." + obj.Name()
		if was, ok := w.found[what]; !ok || len(way) < len(was) {
			w.found[what] = way
		}
	}
}
