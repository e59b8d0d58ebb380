package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

const (
	// maxTries bounds how often a request starts over because other transactions came first.
	maxTries = 100
	// maxAcquire bounds a request to take a lock. A row is removed only when all requests are over that began before it was
	// free, see cleaner.
	maxAcquire = 30 * time.Second
	// lookTimeout bounds a look of a waiting caller, who may have to wait for a connection of the pool.
	lookTimeout = 10 * time.Second
)

// keeper sends the requests about locks to the database. Each is one statement, or a few that are each safe by themselves,
// so no lock of a row is held between them, and a pooler may give each to another session.
type keeper struct {
	db     *sql.DB
	names  names
	text   texts
	ttl    int64 // µs
	health *leasing.Health
	heart  *heart

	unreplicated func() uint64
}

var _ leasing.Service = (*keeper)(nil)

// Admit implements [leasing.Service].
func (k *keeper) Admit(ctx context.Context, _ driver.KeyID) error {
	switch {
	case !k.health.Admit(0):
		return leasing.ErrNoAnswer
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

// noted notes whether the database answered a request, and explains its error.
func (k *keeper) noted(ctx context.Context, sent time.Time, err error) error {
	k.health.Note(ctx, 0, sent, err)
	return k.explained(err)
}

// row is the row of a lock.
type row struct {
	now, fence, ttl, expires int64
	owner                    []byte // nil if the lock is free
	domain, nonce, holder    []byte
}

// left is how long the lock is held unless it is renewed, and 0 for a free one.
func (r *row) left() time.Duration {
	if r.owner == nil {
		return 0
	}
	return max(time.Duration(r.expires-r.now)*time.Microsecond, 0)
}

// look reads the row of a lock. It returns nil if there is none.
func (k *keeper) look(ctx context.Context, id driver.KeyID) (*row, error) {
	var r row
	err := k.db.QueryRowContext(ctx, k.text.look, id[:]).Scan(&r.now, &r.owner, &r.domain, &r.fence, &r.nonce, &r.holder, &r.ttl, &r.expires)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &r, nil
}

// Acquire implements [leasing.Service]. A key without a row takes one statement on PostgreSQL, and two elsewhere.
func (k *keeper) Acquire(ctx context.Context, lock leasing.Lock) (f driver.Fence, taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxAcquire)
	defer cancel()
	sent, began := time.Now(), leaseclock.Now()
	f, taken, err = k.acquire(ctx, lock)
	if taken && leaseclock.Now().Sub(began) >= maxAcquire { // a context does not count the time of a suspended machine
		return driver.Fence{}, false, errLate
	}
	return f, taken, k.noted(ctx, sent, err)
}

func (k *keeper) acquire(ctx context.Context, lock leasing.Lock) (driver.Fence, bool, error) {
	var free *row
	for range maxTries {
		args := []any{lock.Owner[:], lock.Nonce[:], thisProcess, k.ttl, k.ttl}
		text := k.text.insert
		if free == nil {
			args = append([]any{lock.ID[:]}, args...)
		} else {
			text, args = k.text.takeOver, append(args, lock.ID[:], free.fence)
		}
		f, taken, err := k.take(ctx, text, args)
		if taken || err != nil {
			return f, taken, err
		}
		r, err := k.look(ctx, lock.ID)
		switch {
		case k.names.kind.Fault(err) == sqldialect.Conflict:
			continue
		case err != nil:
			return f, false, err
		case r == nil:
			if err := k.nameDomain(ctx); err != nil {
				return f, false, err
			}
		case driver.Nonce(padded(r.owner)) == lock.Owner && !k.names.kind.returning:
			return r.fenced(), true, nil
		case driver.Nonce(padded(r.owner)) == lock.Owner: // since an earlier call, whose time counts
			if renewed, err := k.renew(ctx, lock); renewed || err != nil {
				return r.fenced(), renewed, err
			}
		case r.left() > 0:
			if r.expires-r.now > r.ttl {
				_, err = k.db.ExecContext(ctx, k.text.shorten, lock.ID[:], r.fence) // another caller does it otherwise
			}
			return f, false, k.unlessConflict(err)
		}
		free = r
	}
	return driver.Fence{}, false, errors.New("the lock kept changing")
}

// renew gives a lock its full time to live again. It returns false if the lock has become another owner's.
func (k *keeper) renew(ctx context.Context, lock leasing.Lock) (bool, error) {
	before := k.unreplicated()
	res, err := k.db.ExecContext(ctx, k.text.renew, lock.ID[:], lock.Owner[:])
	if err != nil {
		return false, k.unlessConflict(err)
	}
	if k.unreplicated() != before {
		return false, errUnreplicated
	}
	n, err := res.RowsAffected() // PostgreSQL counts what it found
	return n == 1, err
}

// take sends a statement that takes a lock. It returns false if that has changed nothing, or if the row tells.
func (k *keeper) take(ctx context.Context, text string, args []any) (f driver.Fence, taken bool, err error) {
	before := k.unreplicated()
	if k.names.kind.returning {
		var token int64
		err = k.db.QueryRowContext(ctx, text, args...).Scan(&token, &f.Domain)
		f.Token = uint64(token)
	} else {
		// The number of rows is not used, because the driver may count those that were only found.
		_, err = k.db.ExecContext(ctx, text, args...)
	}
	fault := k.names.kind.Fault(err)
	if errors.Is(err, sql.ErrNoRows) || fault == sqldialect.Duplicate || fault == sqldialect.Conflict {
		return driver.Fence{}, false, nil
	}
	if err == nil && k.unreplicated() != before {
		err = errUnreplicated
	}
	return f, err == nil && k.names.kind.returning, err
}

// errUnreplicated is the reason of driver.ErrUnavailable after a commit that a fail-over may lose.
var errUnreplicated = errors.New("the wait of a commit for the standby was cancelled")

func (r *row) fenced() driver.Fence {
	return driver.Fence{Domain: string(r.domain), Token: uint64(r.fence)}
}

// padded are the bytes of an owner or a nonce. Zeros are nobody's.
func padded(b []byte) (n [16]byte) {
	copy(n[:], b)
	return n
}

// unlessConflict returns nil for the error of a transaction that another one has ended.
func (k *keeper) unlessConflict(err error) error {
	if k.names.kind.Fault(err) == sqldialect.Conflict {
		return nil
	}
	return err
}

// nameDomain names the lock domain, unless another locker on the database has done so.
func (k *keeper) nameDomain(ctx context.Context) error {
	for range maxTries {
		var fence int64
		err := k.db.QueryRowContext(ctx, k.text.domain).Scan(&fence)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = k.db.ExecContext(ctx, k.text.makeDomain, uuid.New())
		if f := k.names.kind.Fault(err); err != nil && f != sqldialect.Duplicate && f != sqldialect.Conflict {
			return err
		}
	}
	return errors.New("the lock domain kept changing")
}

// Extend implements [leasing.Service]. A row that another transaction has locked is tried again for a moment.
func (k *keeper) Extend(ctx context.Context, locks []leasing.Lock) []error {
	sent := time.Now()
	answers := k.heart.extend(ctx, locks)
	for range 10 {
		var again []leasing.Lock
		var at []int
		for i, err := range answers {
			if errors.Is(err, errSkipped) {
				again, at = append(again, locks[i]), append(at, i)
			}
		}
		if len(again) == 0 || !pause(ctx, skippedPause) {
			break
		}
		for i, err := range k.heart.extend(ctx, again) {
			answers[at[i]] = err
		}
	}
	for i, err := range answers {
		if err != nil && !errors.Is(err, leasing.ErrGone) && !errors.Is(err, errSkipped) {
			answers[i] = k.noted(ctx, sent, err)
		}
	}
	return answers
}

// skippedPause is the pause before a row that was locked is tried again.
const skippedPause = 5 * time.Millisecond

// errSkipped is the answer about a row that another transaction has locked.
var errSkipped = errors.New("another transaction has locked the row of the lock")

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Remove implements [leasing.Service]. It looks first if the lock may not be there, because InnoDB
// would lock the gap in which other keys belong.
func (k *keeper) Remove(ctx context.Context, lock leasing.Lock, sure bool) (bool, error) {
	if !k.health.Admit(0) {
		return false, leasing.ErrNoAnswer
	}
	sent := time.Now()
	found, err := k.remove(ctx, lock, sure)
	return found, k.noted(ctx, sent, err)
}

func (k *keeper) remove(ctx context.Context, lock leasing.Lock, sure bool) (bool, error) {
	if !sure {
		if r, err := k.look(ctx, lock.ID); err != nil || r == nil || padded(r.owner) != lock.Owner {
			return false, err
		}
	}
	for range maxTries {
		res, err := k.db.ExecContext(ctx, k.text.release, lock.ID[:], lock.Owner[:])
		if k.names.kind.Fault(err) == sqldialect.Conflict {
			continue
		}
		if err != nil {
			return false, err
		}
		n, err := res.RowsAffected() // the owner of a found row differs afterwards, so every driver counts it
		return n > 0, err
	}
	return false, errors.New("the lock kept changing")
}

// Remaining implements [leasing.Service].
func (k *keeper) Remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	sent := time.Now()
	r, err := k.look(ctx, id)
	if err = k.noted(ctx, sent, err); err != nil || r == nil {
		return 0, err
	}
	return r.left(), nil
}

// ErrNotMigrated says that the tables are missing.
var ErrNotMigrated = errors.New("lock/sql: the tables of locks are missing: call sqlstore.Migrate, or run idemctl store migrate")

// unavailable wraps a reason why a lock cannot be trusted.
func (k *keeper) unavailable(err error) error {
	return fmt.Errorf("lock/sql: acquire: %w: %w", driver.ErrUnavailable, err)
}

// explained adds what a user has to know of an error of the database.
func (k *keeper) explained(err error) error {
	switch k.names.kind.Fault(err) {
	case sqldialect.NoTable:
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	case sqldialect.ReadOnly:
		return fmt.Errorf("the database accepts no writes: %w", err)
	case sqldialect.Busy:
		return fmt.Errorf("another transaction holds the row of the lock: %w", err)
	case sqldialect.Uncommitted:
		return fmt.Errorf("others have left a session of the pool with autocommit off or a transaction open, so nothing would be committed: %w", err)
	case sqldialect.Denied:
		return fmt.Errorf("the user of the database lacks a right on the tables of locks, idemctl store grants prints the GRANT statements (docs/sql.md#rights): %w", err)
	}
	return err
}

// thisProcess names this process in the row of a lock.
var thisProcess = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = url.PathEscape(host)
	return fmt.Sprintf("%d@%s", os.Getpid(), host[:min(len(host), 200)])
}()

// holder reads who holds a lock.
func (r *row) heldBy() (h driver.Holder) {
	h.Nonce = padded(r.nonce)
	pid, host, _ := strings.Cut(string(r.holder), "@")
	h.PID, _ = strconv.Atoi(pid) // 0 is an unknown one
	h.Host, _ = url.PathUnescape(host)
	return h
}
