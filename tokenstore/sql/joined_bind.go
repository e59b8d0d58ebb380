package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// bindRounds bounds how often Bind looks again after another caller came first.
const bindRounds = 5

// Bind commits a fingerprint for a key, unless the key has one that still counts, and returns
// the one it has. [driver.JoinedStore] has the contract. The error wraps driver.ErrUnavailable.
func (j *Joined) Bind(ctx context.Context, id driver.KeyID, fp driver.Fingerprint, ttl time.Duration) (driver.Fingerprint, error) {
	if err := j.mayWrite("bind"); err != nil {
		return driver.Fingerprint{}, err
	}
	for range bindRounds {
		bound, done, err := j.bindOnce(ctx, id, fp, ttl)
		switch {
		case err != nil && j.dialect.Fault(err) != sqldialect.Conflict:
			return driver.Fingerprint{}, j.failed("bind", err)
		case done:
			return bound, nil
		}
	}
	return driver.Fingerprint{}, fmt.Errorf("tokenstore/sql: bind: %w: the binding kept changing", driver.ErrUnavailable)
}

// bindOnce returns done false if another caller came between two of its statements.
func (j *Joined) bindOnce(ctx context.Context, id driver.KeyID, fp driver.Fingerprint, ttl time.Duration) (bound driver.Fingerprint, done bool, err error) {
	column, lasts := packFingerprint(fp), ttl.Microseconds()
	st := &j.joined
	n, err := changed(j.db.ExecContext(ctx, st.bind, id[:], []byte{}, column, lasts))
	switch {
	case j.dialect.Fault(err) == sqldialect.Duplicate:
	case err != nil || n == 1:
		return fp, err == nil, err
	}
	var stored []byte
	var created, left int64
	err = j.db.QueryRowContext(ctx, st.bound, id[:]).Scan(&stored, &created, &left)
	switch {
	case errors.Is(err, sql.ErrNoRows): // it has been removed since
		return bound, false, nil
	case err != nil:
		return bound, false, err
	case left <= 0: // of an operation whose time is over
		n, err := changed(j.db.ExecContext(ctx, st.rebind, column, lasts, id[:], stored, created))
		return fp, err == nil && n == 1, err
	case len(stored) != 1+len(bound.Sum):
		return bound, false, fmt.Errorf("a fingerprint of %d bytes", len(stored))
	}
	bound.Version = stored[0]
	copy(bound.Sum[:], stored[1:])
	if bound == fp && left < lasts {
		_, err = j.db.ExecContext(ctx, st.extend, lasts, id[:], stored)
	}
	return bound, err == nil, err
}
