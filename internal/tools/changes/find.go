package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// change is one change. Its number is that of its switch.
type change struct {
	number     int
	file       string
	line       int
	kind, code string
}

func (c change) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", c.file, c.line, c.kind, c.code)
}

// finder looks for changes, and notes how to write them into a file.
type finder struct {
	*source
	file    *ast.File
	text    []byte // of the file
	changes []change
	edits   []edit
	whole   map[ast.Expr]bool // conditions and operands, which are always true or false
}

// next returns the number of a new change.
func (f *finder) next(at ast.Node, kind string) int {
	pos := f.fset.Position(at.Pos())
	code := []rune(strings.Join(strings.Fields(f.code(at)), " "))
	if len(code) > 100 {
		code = append(code[:100], '…')
	}
	n := len(f.changes) + 1
	f.changes = append(f.changes, change{n, filepath.Base(pos.Filename), pos.Line, kind, string(code)})
	return n
}

// walk visits the code of a function, or an expression without one.
func (f *finder) walk(code ast.Node, sig *types.Signature) {
	ast.Inspect(code, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.walk(n.Body, f.info.TypeOf(n).(*types.Signature))
			return false
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.BlockStmt:
			f.list(n.List, sig)
		case *ast.CommClause:
			f.list(n.Body, sig)
		case *ast.CaseClause:
			f.list(n.Body, sig)
		case *ast.IfStmt:
			f.condition(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				f.condition(n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						f.condition(e)
					}
				}
			}
		case *ast.BinaryExpr:
			f.binary(n)
		}
		return true
	})
}

// plainBool reports whether the value of a function that returns bool may stand for e.
func (f *finder) plainBool(e ast.Expr) bool {
	tv := f.info.Types[e]
	basic, ok := tv.Type.(*types.Basic)
	return ok && tv.Value == nil && (basic.Kind() == types.Bool || basic.Kind() == types.UntypedBool)
}

func (f *finder) condition(e ast.Expr) {
	f.always(e, true)
	f.always(e, false)
	f.whole[ast.Unparen(e)] = true
}

func (f *finder) always(e ast.Expr, value bool) {
	if !f.plainBool(e) {
		return
	}
	n := f.next(e, fmt.Sprintf("condition %v", value))
	if value {
		f.wrap(e, fmt.Sprintf("(changed_(%d) || (", n), "))")
	} else {
		f.wrap(e, fmt.Sprintf("(!changed_(%d) && (", n), "))")
	}
}

// limits are the comparisons with their limit included or excluded.
var limits = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

func (f *finder) binary(e *ast.BinaryExpr) {
	switch e.Op {
	case token.LAND, token.LOR:
		if !f.whole[e] {
			f.condition(e)
		}
		for _, operand := range []ast.Expr{e.X, e.Y} {
			plain := ast.Unparen(operand)
			f.whole[plain] = true
			if inner, ok := plain.(*ast.BinaryExpr); !ok || inner.Op != e.Op {
				f.always(operand, e.Op == token.LAND)
			}
		}
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		f.compare(e, "limit", limits[e.Op])
	case token.EQL, token.NEQ:
		if !f.whole[e] {
			f.compare(e, "negated", map[token.Token]token.Token{token.EQL: token.NEQ, token.NEQ: token.EQL}[e.Op])
		}
	case token.ADD:
		f.arithmetic(e, "difference", "sum_")
	case token.SUB:
		f.arithmetic(e, "sum", "difference_")
	}
}

// compare evaluates the operands once: either as they are and with the other operator, or with
// the changes within them.
func (f *finder) compare(e *ast.BinaryExpr, kind string, op token.Token) {
	if f.plainBool(e) {
		n := f.next(e, kind)
		f.wrap(e, fmt.Sprintf("(changed_(%d) && (%s %s %s) || !changed_(%d) && (", n, f.code(e.X), op, f.code(e.Y), n), "))")
	}
}

// arithmetic lets a generic function add or subtract. Its type comes from the operands, so
// both have to have the type of the result without it.
func (f *finder) arithmetic(e *ast.BinaryExpr, kind, function string) {
	tv := f.info.Types[e]
	if tv.Value != nil || !number(tv.Type) || f.shift(e.X) || f.shift(e.Y) {
		return
	}
	n := f.next(e, kind)
	f.wrap(e, fmt.Sprintf("%s(%d, ", function, n), ")")
	f.replace(e.OpPos, len(e.Op.String()), ",")
}

func number(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&(types.IsInteger|types.IsFloat) != 0 && basic.Info()&types.IsUntyped == 0
}

// shift reports whether an operand is a shifted constant, whose type depends on where it stands.
func (f *finder) shift(e ast.Expr) bool {
	b, ok := ast.Unparen(e).(*ast.BinaryExpr)
	return ok && (b.Op == token.SHL || b.Op == token.SHR) && f.info.Types[b.X].Value != nil
}

// list changes the statements of a block.
func (f *finder) list(statements []ast.Stmt, sig *types.Signature) {
	for _, s := range statements {
		if r, ok := s.(*ast.ReturnStmt); ok {
			f.returned(r, sig)
			continue
		}
		if f.effect(s) {
			f.wrap(s, fmt.Sprintf("if !changed_(%d) { ", f.next(s, "left out")), " }")
		}
		switch s := s.(type) {
		case *ast.IncDecStmt:
			f.stepped(s, s.X, map[token.Token]string{token.INC: "--", token.DEC: "++"}[s.Tok], "")
		case *ast.AssignStmt:
			if op := map[token.Token]string{token.ADD_ASSIGN: " -= ", token.SUB_ASSIGN: " += "}[s.Tok]; op != "" {
				f.stepped(s, s.Lhs[0], op, f.code(s.Rhs[0]))
			}
		}
	}
}

// effect reports whether a statement may be left out.
func (f *finder) effect(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return true // a receive
		}
		name, ok := ast.Unparen(call.Fun).(*ast.Ident)
		return !ok || f.info.Uses[name] != types.Universe.Lookup("panic")
	case *ast.AssignStmt:
		discards := !slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool { id, ok := e.(*ast.Ident); return !ok || id.Name != "_" })
		_, calls := s.Rhs[0].(*ast.CallExpr)
		return s.Tok != token.DEFINE && (!discards || calls)
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	}
	return false
}

// stepped makes a number go the other way.
func (f *finder) stepped(s ast.Stmt, x ast.Expr, op, by string) {
	if number(f.info.TypeOf(x)) {
		kind := "difference"
		if strings.Contains(op, "+") {
			kind = "sum"
		}
		f.wrap(s, fmt.Sprintf("if changed_(%d) { %s%s%s } else { ", f.next(s, kind), f.code(x), op, by), " }")
	}
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

// returned makes each error of a return statement nil.
func (f *finder) returned(r *ast.ReturnStmt, sig *types.Signature) {
	for i := range sig.Results().Len() {
		if len(r.Results) == 0 || !nilError(sig.Results().At(i).Type()) {
			continue
		}
		var before string
		values := make([]string, sig.Results().Len())
		if len(r.Results) == len(values) {
			if f.info.Types[r.Results[i]].IsNil() {
				continue
			}
			for j, e := range r.Results {
				values[j] = f.code(e)
			}
			before = "_ = " + values[i]
		} else { // the results of one call
			names := make([]string, len(values))
			for j := range values {
				values[j] = fmt.Sprintf("r%d_", j)
			}
			copy(names, values)
			names[i] = "_"
			before = strings.Join(names, ", ") + " := " + f.code(r.Results[0])
		}
		values[i] = "nil"
		f.wrap(r, fmt.Sprintf("if changed_(%d) { %s; return %s }; ", f.next(r, "no error"), before, strings.Join(values, ", ")), "")
	}
}

// nilError reports whether a type is for errors and has the value nil.
func nilError(t types.Type) bool {
	if _, generic := t.(*types.TypeParam); generic || !types.Implements(t, errorType) {
		return false
	}
	switch t.Underlying().(type) {
	case *types.Interface, *types.Pointer:
		return true
	}
	return false
}
