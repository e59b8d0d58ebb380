package sqlstore

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.StoreInspector = (*Store)(nil)

// keysRead is how many keys EachKey reads in one statement.
const keysRead = 5000

// EachKey calls f with the ID of every record, until f returns false. It goes along the primary
// key in short statements. The error wraps driver.ErrUnavailable.
func (s *Store) EachKey(ctx context.Context, f func(driver.KeyID) bool) error {
	var after []byte // an empty value comes before every key
	for {
		ids, err := s.keysAfter(ctx, after)
		if err != nil {
			return s.failed("keys", err)
		}
		for _, id := range ids {
			if !f(id) {
				return nil
			}
		}
		if len(ids) < keysRead {
			return nil
		}
		after = ids[len(ids)-1][:]
	}
}

func (s *Store) keysAfter(ctx context.Context, after []byte) (ids []driver.KeyID, err error) {
	if after == nil {
		after = []byte{}
	}
	rows, err := s.read.QueryContext(ctx, s.statements.keys, after, keysRead)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var k []byte
		if err := rows.Scan(&k); err != nil {
			return nil, err
		}
		var id driver.KeyID
		if len(k) != len(id) {
			return nil, fmt.Errorf("a key ID of %d bytes", len(k))
		}
		copy(id[:], k)
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

var _ driver.LockInspector = (*Joined)(nil)

// HeldBy implements [driver.LockInspector]. The holder is a transaction, and has no name.
func (j *Joined) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	held, err := j.Held(ctx, id)
	return driver.Holder{}, held, err
}

// DomainOf implements [driver.LockInspector].
func (j *Joined) DomainOf(context.Context, driver.KeyID) (string, error) {
	return driver.JoinedDomain, nil
}
