package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

// Settle closes an attempt or marks it unknown. It repairs a record that is missing or older
// than the attempt. [driver.Store] has the table. It takes two statements, and on
// PostgreSQL one if the attempt is completed with an answer of its handler. [Store.Decisions]
// keeps the decisions of people. The error wraps driver.ErrNewerRecord, driver.ErrCorruptRecord,
// driver.ErrResponseInvalid or driver.ErrUnavailable.
func (s *Store) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (res driver.SettleResult, err error) {
	if err := s.maySettle(&st); err != nil {
		return res, err
	}
	if res, done, err := s.complete(ctx, id, &st, nil); done || err != nil {
		return res, err
	}
	err = s.change(ctx, "settle", id, func(e *rules.Entry, now time.Time) (write *rules.Entry, err error) {
		if write, res, err = rules.Settle(e, &st, now); err != nil {
			err = fmt.Errorf("tokenstore/sql: settle: %w", err)
		}
		return write, err
	})
	if err != nil {
		return driver.SettleResult{}, err
	}
	return res, nil
}

// mayDecide refuses a decision that no record can hold.
func (s *Store) mayDecide(method string, d driver.Decision) error {
	if n := len(d.Reason); n > maxReason {
		return fmt.Errorf("tokenstore/sql: %s: the decision's reason has %d bytes, want at most %d", method, n, maxReason)
	}
	return s.mayWrite(method, d.By)
}

// maySettle refuses a settlement that no record can hold.
func (s *Store) maySettle(st *driver.Settlement) error {
	var re driver.Repair
	if st.Repair != nil {
		re = *st.Repair
	}
	if err := s.mayWrite("settle", st.Attempt.Fence.Domain, st.Decision.By, re.Route, re.Replaced.Attempt.Fence.Domain); err != nil {
		return err
	}
	if err := s.mayDecide("settle", st.Decision); err != nil {
		return err
	}
	switch st.State {
	case driver.StateCompleted:
		if st.Response == nil {
			return errors.New("tokenstore/sql: settle: completed without a response")
		}
	case driver.StateReleased, driver.StateUnknown:
	default:
		return fmt.Errorf("tokenstore/sql: settle: state %v", st.State)
	}
	return nil
}
