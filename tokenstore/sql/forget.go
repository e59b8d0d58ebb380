package sqlstore

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

var _ driver.Forgetter = (*Store)(nil)

// Forget removes the stored response of a key, and leaves the key. The row of before stays in the files of
// the database until it cleans them, and in its logs and backups. The error wraps
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Forget(ctx context.Context, id driver.KeyID, d driver.Decision) (rec driver.Record, err error) {
	if err := s.mayDecide("forget", d); err != nil {
		return rec, err
	}
	settlement := driver.NewNonce()
	err = s.changeBy(ctx, "forget", id, func(e *rules.Entry, _ time.Time) (*rules.Entry, error) {
		write, err := rules.Forget(e)
		if rec = e.Copy(); write != nil {
			rec = write.Copy()
		}
		return write, err
	}, func(ctx context.Context, f *found, write *rules.Entry) (bool, error) {
		return s.replaceDecided(ctx, "forget", id, f, write, settlement, driver.StateExpired, d)
	})
	return rec, err
}
