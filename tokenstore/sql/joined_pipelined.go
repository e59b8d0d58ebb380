package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
)

// pipelinedSession is a connection of database/sql to PostgreSQL that is a [sqlpipeline.Conn].
type pipelinedSession struct {
	*sqlSession
	pipelines sqlpipeline.Conn
	hidden    bool // a wrapper has hidden the context of BEGIN, so the connection does not know of the transaction
}

// databaseSQL returns the session of database/sql, or nil if it is another one.
func databaseSQL(s Session) *sqlSession {
	switch s := s.(type) {
	case *sqlSession:
		return s
	case *pipelinedSession:
		return s.sqlSession
	case *compoundSession:
		return s.sqlSession
	}
	return nil
}

var _ PipelinedSession = (*pipelinedSession)(nil)

func (s *pipelinedSession) BeginRow(ctx context.Context, level sql.IsolationLevel, statement string, args []any, to ...any) error {
	st := &sqlpipeline.Statement{Text: statement, Args: args, To: to}
	err := s.Begin(sqlpipeline.WithBegin(ctx, st), level)
	if s.hidden = !st.Sent; err != nil || st.Sent {
		return err
	}
	return s.QueryRow(ctx, statement, args, to...)
}

// RowCommit may be overtaken by a goroutine of the handler that commits. Then the statement goes with that COMMIT, or the
// server refuses that COMMIT because the record is not completed.
func (s *pipelinedSession) RowCommit(ctx context.Context, statement string, args []any, to ...any) (skipped bool, err error) {
	if s.hidden {
		if err := s.QueryRow(ctx, statement, args, to...); err != nil {
			return true, err
		}
		return false, s.Commit(ctx)
	}
	st := &sqlpipeline.Statement{Text: statement, Args: args, To: to}
	err = s.within(ctx, func() error {
		if err := s.commitWith(st); err != nil {
			return err
		}
		err := s.tx.Commit()
		if errors.Is(err, sql.ErrTxDone) { // wait for the other COMMIT, or keep the statement from it
			return errors.Join(err, s.commitWith(nil))
		}
		return err
	})
	switch {
	case errors.Is(err, ErrStatementOpen): // the call was not made
		return true, err
	case s.stuck != nil:
		s.cancel()
		return false, err
	}
	return !st.Sent || st.Skipped, err
}

func (s *pipelinedSession) commitWith(st *sqlpipeline.Statement) error {
	return s.conn.Raw(func(any) error {
		s.pipelines.CommitWith(st)
		return nil
	})
}
