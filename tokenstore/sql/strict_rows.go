package sqlstore

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// strictStmt is a prepared statement of a [strictConn].
type strictStmt struct {
	sqldriver.Stmt
	conn *strictConn
	text string
}

func (s *strictStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	if err := s.conn.enter(s.text); err != nil {
		return nil, err
	}
	if with, ok := s.Stmt.(sqldriver.StmtExecContext); ok {
		res, err = with.ExecContext(ctx, args)
	} else {
		res, err = s.Stmt.Exec(values(args)) //nolint:staticcheck // the driver has no other method
	}
	s.conn.leave(s.text, err)
	return res, err
}

func (s *strictStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	if err := s.conn.enter(s.text); err != nil {
		return nil, err
	}
	if with, ok := s.Stmt.(sqldriver.StmtQueryContext); ok {
		rows, err = with.QueryContext(ctx, args)
	} else {
		rows, err = s.Stmt.Query(values(args)) //nolint:staticcheck // the driver has no other method
	}
	s.conn.leave(s.text, err)
	return s.conn.rows(rows, err)
}

func (s *strictStmt) CheckNamedValue(v *sqldriver.NamedValue) error {
	if _, ok := s.Stmt.(sqldriver.NamedValueChecker); ok {
		return s.conn.check(s.Stmt, v)
	}
	return s.conn.CheckNamedValue(v)
}

func values(args []sqldriver.NamedValue) []sqldriver.Value {
	list := make([]sqldriver.Value, len(args))
	for i, arg := range args {
		list[i] = arg.Value
	}
	return list
}

// strictRows are the rows of a handler. A statement may fail while they are read, and also while they are
// closed, because a driver then reads the rest.
type strictRows struct {
	sqldriver.Rows
	conn *strictConn
}

func (r *strictRows) Close() error { return r.read(r.Rows.Close()) }

func (r *strictRows) Next(to []sqldriver.Value) error { return r.read(r.Rows.Next(to)) }

func (r *strictRows) read(err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		r.conn.leave("", err)
	}
	return err
}

func (r *strictRows) HasNextResultSet() bool {
	more, ok := r.Rows.(sqldriver.RowsNextResultSet)
	return ok && more.HasNextResultSet()
}

func (r *strictRows) NextResultSet() error {
	if more, ok := r.Rows.(sqldriver.RowsNextResultSet); ok {
		return r.read(more.NextResultSet())
	}
	return io.EOF
}

func (r *strictRows) ColumnTypeScanType(i int) reflect.Type {
	if of, ok := r.Rows.(sqldriver.RowsColumnTypeScanType); ok {
		return of.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}

func (r *strictRows) ColumnTypeDatabaseTypeName(i int) string {
	if of, ok := r.Rows.(sqldriver.RowsColumnTypeDatabaseTypeName); ok {
		return of.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

func (r *strictRows) ColumnTypeLength(i int) (int64, bool) {
	if of, ok := r.Rows.(sqldriver.RowsColumnTypeLength); ok {
		return of.ColumnTypeLength(i)
	}
	return 0, false
}

func (r *strictRows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if of, ok := r.Rows.(sqldriver.RowsColumnTypeNullable); ok {
		return of.ColumnTypeNullable(i)
	}
	return false, false
}

func (r *strictRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if of, ok := r.Rows.(sqldriver.RowsColumnTypePrecisionScale); ok {
		return of.ColumnTypePrecisionScale(i)
	}
	return 0, 0, false
}
