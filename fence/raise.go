package fence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// StaleError says that the ledger has seen a later holder of the operation's lock. Roll the
// transaction back. The outcome of the operation is up to the later holder.
type StaleError struct {
	OperationID string
	Fence       driver.Fence // refused
	Latest      driver.Fence // in the table
}

// Error names the operation and both fences.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: operation %s: %s is stale, the ledger has seen %s", e.OperationID, e.Fence, e.Latest)
}

// longest is the length of an operation ID or a lock domain in bytes, on every database.
const longest = 255

// Raise confirms that no later holder was there, and records the fence. Call it before the first
// write for the operation, in the same transaction. It locks the row of the operation until tx
// ends. The same fence may be raised again. Like [idem.CheckOwner] it marks the attempt of ctx as one
// that may have had effects.
//
// The error is a [*StaleError] if a later holder was there. Roll tx back after any error.
func (t *Table) Raise(ctx context.Context, tx *sql.Tx, operationID string, f driver.Fence) error {
	_, _ = idem.DownstreamKey(ctx, "") // outside of an execution there is nothing to mark
	return t.raise(ctx, tx, operationID, f, "")
}

// Settle is Raise for a resolver. doubt is the fence of the attempt in doubt (the field
// Attempt.Fence of idem.Interrupted), and f that of the resolver. If they are of different lock
// domains, the domain of doubt is over for the operation, even if the table has never seen it.
// After tx has committed, the attempt in doubt cannot write any more.
func (t *Table) Settle(ctx context.Context, tx *sql.Tx, operationID string, f, doubt driver.Fence) error {
	return t.raise(ctx, tx, operationID, f, doubt.Domain)
}

// raiseRounds bounds how often raise inserts the row again after another transaction has deleted
// it.
const raiseRounds = 3

func (t *Table) raise(ctx context.Context, tx *sql.Tx, operationID string, f driver.Fence, over string) error {
	switch {
	case operationID == "" || len(operationID) > longest || len(f.Domain) > longest || len(over) > longest:
		return fmt.Errorf("fence: operation ID and lock domain: want 1 to %d bytes", longest)
	case f.Domain == "" || f.Token == 0 || f.Token > math.MaxInt64:
		return fmt.Errorf("fence: operation %s: the fence %q cannot be compared (joined mode has none)", operationID, f)
	}
	for range raiseRounds {
		if _, err := tx.ExecContext(ctx, t.insert, operationID, f.Domain, int64(f.Token), "[]"); err != nil {
			return fmt.Errorf("fence: operation %s: %w", operationID, err)
		}
		// The number of rows changed means something else on each database. The row tells.
		r, err := t.read(ctx, tx, operationID)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return fmt.Errorf("fence: operation %s: %w", operationID, err)
		}
		changed, err := r.advance(operationID, f, over)
		if err != nil || !changed {
			return err
		}
		if _, err := tx.ExecContext(ctx, t.update, r.Domain, int64(r.Token), r.pastJSON(), operationID); err != nil {
			return fmt.Errorf("fence: operation %s: %w", operationID, err)
		}
		return nil
	}
	return fmt.Errorf("fence: operation %s: its row is deleted again and again", operationID)
}

// read locks the row of an operation and reads it.
func (t *Table) read(ctx context.Context, tx *sql.Tx, operationID string) (r row, err error) {
	var token int64
	var past string
	if err := tx.QueryRowContext(ctx, t.lock, operationID).Scan(&r.Domain, &token, &past); err != nil {
		return r, err
	}
	r.Token = uint64(token)
	if err := json.Unmarshal([]byte(past), &r.past); err != nil {
		return r, fmt.Errorf("past domains: %w", err)
	}
	return r, nil
}

// row is the highest fence seen for an operation.
type row struct {
	driver.Fence
	past []string // earlier lock domains
}

// advance brings the row to f and ends a lock domain, unless that is "". It reports whether the
// row is another one now. The error is a StaleError.
func (r *row) advance(operationID string, f driver.Fence, over string) (changed bool, err error) {
	if slices.Contains(r.past, f.Domain) || f.Before(r.Fence) {
		return false, &StaleError{OperationID: operationID, Fence: f, Latest: r.Fence}
	}
	before, fence := len(r.past), r.Fence
	r.Fence = f
	r.end(fence.Domain)
	r.end(over)
	return r.Fence != fence || len(r.past) != before, nil
}

// end notes that a domain other than that of the row is over.
func (r *row) end(domain string) {
	if domain != "" && domain != r.Domain && !slices.Contains(r.past, domain) {
		r.past = append(r.past, domain)
	}
}

func (r *row) pastJSON() string {
	b, _ := json.Marshal(r.past) //nolint:errchkjson // strings always marshal
	return string(b)
}
