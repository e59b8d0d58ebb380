package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
)

// edit puts text in the place of some bytes of a file.
type edit struct {
	offset, length int
	order          int // of edits at one offset
	text           string
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

// code is the text of a node, without changes.
func (f *finder) code(n ast.Node) string { return string(f.text[f.offset(n.Pos()):f.offset(n.End())]) }

// wrap puts text around a node. Where nodes begin or end together, the later one is the inner one.
func (f *finder) wrap(n ast.Node, before, after string) {
	order := len(f.edits) + 1
	f.edits = append(f.edits, edit{f.offset(n.Pos()), 0, order, before}, edit{f.offset(n.End()), 0, -order, after})
}

func (f *finder) replace(p token.Pos, length int, text string) {
	f.edits = append(f.edits, edit{f.offset(p), length, 0, text})
}

// rewrite writes all changes into the files of a package, each behind its switch.
func (s *source) rewrite() (changes []change, err error) {
	for _, file := range s.files {
		name := s.fset.Position(file.Pos()).Filename
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f := &finder{source: s, file: file, text: text, changes: changes, whole: map[ast.Expr]bool{}}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Body != nil {
					f.walk(d.Body, s.info.Defs[d.Name].Type().(*types.Signature))
				}
			case *ast.GenDecl:
				f.walk(d, nil)
			}
		}
		changes = f.changes
		if err := os.WriteFile(name, f.edited(), 0o600); err != nil {
			return nil, err
		}
	}
	return changes, os.WriteFile(filepath.Join(s.dir, "changed_.go"), fmt.Appendf(nil, switches, s.name, len(changes)+1), 0o600)
}

// edited is the file with its edits.
func (f *finder) edited() (out []byte) {
	slices.SortFunc(f.edits, func(a, b edit) int { return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.order, b.order)) })
	done := 0
	for _, e := range f.edits {
		out = append(append(out, f.text[done:e.offset]...), e.text...)
		done = e.offset + e.length
	}
	return append(out, f.text[done:]...)
}

// The environment of a test binary. One variable has the number of the change that is on, the
// other one the file to which each switch that is passed writes its number once.
const (
	onVariable     = "CHANGES_ON"
	recordVariable = "CHANGES_RECORD"
)

// switches is the file that the package gets.
const switches = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	on_, _     = strconv.Atoi(os.Getenv("` + onVariable + `"))
	record_, _ = os.OpenFile(os.Getenv("` + recordVariable + `"), os.O_APPEND|os.O_WRONLY, 0)
	passed_    [%d]atomic.Bool
)

func changed_(n int) bool {
	if record_ != nil && !passed_[n].Swap(true) {
		_, _ = record_.WriteString(strconv.Itoa(n) + "\n")
	}
	return n == on_
}

type number_ interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func sum_[T number_](n int, a, b T) T {
	if changed_(n) {
		return a - b
	}
	return a + b
}

func difference_[T number_](n int, a, b T) T {
	if changed_(n) {
		return a + b
	}
	return a - b
}
`
