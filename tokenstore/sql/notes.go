package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// RetireDomain records that a lock domain is dead. The store keeps the first decision. The
// error wraps driver.ErrUnavailable if the database could not be asked.
func (s *Store) RetireDomain(ctx context.Context, domain string, d driver.Decision) error {
	if domain == "" {
		return errors.New("tokenstore/sql: retire: no domain")
	}
	if err := s.mayWrite("retire", domain, d.By); err != nil {
		return err
	}
	if len(d.Reason) > maxReason {
		return fmt.Errorf("tokenstore/sql: retire: the reason has %d bytes, want at most %d", len(d.Reason), maxReason)
	}
	return s.note(ctx, s.db, "retire", s.statements.retire, text(domain), text(d.By), text(d.Reason))
}

// DomainRetired reports whether a lock domain was retired. The error wraps
// driver.ErrUnavailable.
func (s *Store) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return s.noted(ctx, "retired", s.statements.retired, text(domain))
}

// fenceNote is the name of the note with the highest fence of a lock domain. A domain may be longer
// than a name.
func fenceNote(domain string) string {
	sum := sha256.Sum256([]byte(domain))
	return "fence:" + hex.EncodeToString(sum[:24])
}

// NoteFence keeps the highest fence of a lock domain. The error wraps driver.ErrUnavailable if the
// database could not be asked.
func (s *Store) NoteFence(ctx context.Context, f driver.Fence) error {
	if err := s.mayWrite("note fence", f.Domain); err != nil {
		return err
	}
	name, token := fenceNote(f.Domain), int64(min(f.Token, math.MaxInt64))
	raised, err := s.raiseFence(ctx, name, token)
	if raised || err != nil {
		return err
	}
	if err := s.note(ctx, s.db, "note fence", s.statements.noteFence, name, token); err != nil {
		return err
	}
	_, err = s.raiseFence(ctx, name, token) // another process may have made the row since
	return err
}

// raiseFence reports whether the noted fence was lower.
func (s *Store) raiseFence(ctx context.Context, name string, token int64) (raised bool, err error) {
	for range mostTries {
		res, err := s.db.ExecContext(ctx, s.statements.raiseFence, token, name, token)
		if s.dialect.Fault(err) == sqldialect.Conflict { // at SERIALIZABLE
			continue
		}
		if err != nil {
			return false, s.failed("note fence", err)
		}
		n, err := res.RowsAffected()
		return n > 0, s.failed("note fence", err)
	}
	return false, fmt.Errorf("tokenstore/sql: note fence: %w: the note kept changing", driver.ErrUnavailable)
}

// HighestFence returns the highest token that was noted of a lock domain, cut off at 1<<63-1. The
// error wraps driver.ErrUnavailable.
func (s *Store) HighestFence(ctx context.Context, domain string) (uint64, error) {
	var token int64
	err := s.read.QueryRowContext(ctx, s.statements.highest, fenceNote(domain)).Scan(&token)
	return uint64(token), s.failed("highest fence", err)
}

// sealedNote is the name of the note of DeclareSealed.
const sealedNote = "sealed"

// DeclareSealed notes that services encrypt the responses stored here. Tools without a key
// ring read the note. A service that encrypts calls it when it starts. It is safe to repeat,
// and the first time is kept. The error wraps driver.ErrUnavailable.
func (s *Store) DeclareSealed(ctx context.Context) error {
	if err := s.mayWrite("declare sealed"); err != nil {
		return err
	}
	return s.note(ctx, s.db, "declare sealed", s.statements.declare, sealedNote)
}

// Sealed reports whether a service called [Store.DeclareSealed]. The error wraps
// driver.ErrUnavailable.
func (s *Store) Sealed(ctx context.Context) (bool, error) {
	return s.noted(ctx, "sealed", s.statements.declared, sealedNote)
}

// note inserts a row once. A row that is there already stays.
func (s *Store) note(ctx context.Context, q querier, method, statement string, args ...any) error {
	_, err := q.ExecContext(ctx, statement, args...)
	if s.dialect.Fault(err) == sqldialect.Duplicate {
		return nil
	}
	return s.failed(method, err)
}

// noted reports whether a row is there.
func (s *Store) noted(ctx context.Context, method, statement string, args ...any) (bool, error) {
	var n int
	err := s.read.QueryRowContext(ctx, statement, args...).Scan(&n)
	return n > 0, s.failed(method, err)
}

// Clock returns the time of the database, which is the time of the records. The error wraps
// driver.ErrUnavailable.
func (s *Store) Clock(ctx context.Context) (time.Time, error) {
	var now int64
	err := s.read.QueryRowContext(ctx, s.names.sql("SELECT {clock}")).Scan(&now)
	return timeOf(now), s.failed("clock", err)
}

// Decisions lists people's decisions about a key, newest first. Their times keep that order. They
// outlive the record and its next attempt, unlike the decision in the record. Decisions of resolver, engine, marker
// and sweeper are not kept. The error wraps driver.ErrUnavailable.
func (s *Store) Decisions(ctx context.Context, id driver.KeyID) (list []driver.Decided, err error) {
	rows, err := s.read.QueryContext(ctx, s.statements.decisions, id[:])
	if err != nil {
		return nil, s.failed("decisions", err)
	}
	defer rows.Close()
	for rows.Next() {
		var d driver.Decided
		var at, attempt, state int64
		var settlement, by, reason []byte
		if err := rows.Scan(&at, &attempt, &state, &settlement, &by, &reason); err != nil {
			return nil, s.failed("decisions", err)
		}
		d.At, d.Attempt, d.State = timeOf(at), uint32(attempt), driver.State(state)
		d.By, d.Reason = string(by), string(reason)
		copy(d.ID[:], settlement)
		list = append(list, d)
	}
	return list, s.failed("decisions", rows.Err())
}

// replaceDecided is replace for the decision of a person. The decision is kept in the same
// transaction, as of the attempt of the record.
func (s *Store) replaceDecided(ctx context.Context, method string, id driver.KeyID, f *found, write *rules.Entry, settlement driver.Nonce, state driver.State, d driver.Decision) (done bool, err error) {
	tx, err := s.begin(ctx)
	if err != nil {
		return false, s.failed(method, err)
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	done, err = s.replace(ctx, tx, &s.statements.within, method, id, f, write)
	if !done || err != nil {
		return false, err
	}
	err = s.note(ctx, tx, method, s.statements.decide, id[:], settlement[:],
		int64(write.Record.Attempt.Number), int64(state), text(d.By), text(d.Reason), id[:])
	if err != nil {
		return false, err
	}
	err = tx.Commit()
	if s.dialect.Fault(err) == sqldialect.Conflict {
		return false, nil
	}
	return err == nil, s.failed(method, err)
}
