package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Lock is what is known about the lock of an open attempt.
type Lock uint8

// The states of a lock, as an operator sees them.
const (
	LockNotAsked  Lock = iota // the attempt is settled, or its record cannot be read
	LockUnknown               // the lock service did not answer, or is not known here
	LockFree                  // no process holds it
	LockOfAttempt             // the holder of the attempt has it
	LockOfOther               // another owner has it, for example a resolver
	LockElsewhere             // the attempt ran under another lock domain, which is not retired
)

// Facts are what is known about a record at one moment.
type Facts struct {
	driver.OpenRecord

	Now     time.Time // by the store's clock
	Lock    Lock
	Holder  driver.Holder // with LockOfAttempt and LockOfOther
	LockErr error         // with LockUnknown
	Retired bool          // the lock domain of the attempt was retired
	Policy  *idem.Policy  // of the record's route, nil if it is not known here
}

// Looker collects facts about records. Its fields do not change. It is safe for concurrent use.
type Looker struct {
	Store driver.Store
	// Locks returns where the lock of a record would be, or nil if that is not known.
	Locks func(*driver.Record) driver.LockInspector
	// Policies returns the policy of a route. It is nil where no policy is known.
	Policies func(route string) (idem.Policy, bool)
}

// workers is the number of records that are looked up at the same time.
const workers = 16

// Clock returns the time of the store, and that of this process if the store does not tell.
func (l *Looker) Clock(ctx context.Context) (time.Time, error) {
	in, ok := l.Store.(driver.StoreInspector)
	if !ok {
		return time.Now(), nil
	}
	now, err := in.Clock(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return time.Now(), nil
	}
	return now, err
}

// Decisions lists the decisions of people about a key, newest first, as far as the store keeps
// them.
func (l *Looker) Decisions(ctx context.Context, id driver.KeyID) ([]driver.Decided, error) {
	in, ok := l.Store.(driver.StoreInspector)
	if !ok {
		return nil, nil
	}
	list, err := in.Decisions(ctx, id)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	return list, err
}

// Get looks at the record of a key. An unreadable record is no error, and has its Err. The
// record is in StateNone if there is none. If only the response cannot be opened, the record has
// its ResponseErr.
func (l *Looker) Get(ctx context.Context, id driver.KeyID) (*Facts, error) {
	rec, err := l.Store.Get(ctx, id)
	row := driver.OpenRecord{ID: id, Record: rec}
	switch {
	case errors.Is(err, driver.ErrNewerRecord), errors.Is(err, driver.ErrCorruptRecord):
		row.Err = err
	case err != nil && rec.State != driver.StateNone:
		row.Record.ResponseErr = err
	case err != nil:
		return nil, err
	}
	list, err := l.Look(ctx, []driver.OpenRecord{row})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Look returns the facts about records, in their order.
func (l *Looker) Look(ctx context.Context, rows []driver.OpenRecord) ([]*Facts, error) {
	now, err := l.Clock(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]*Facts, len(rows))
	retired := domains{store: l.Store}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(workers, len(rows)) {
		wg.Go(func() {
			for i := range next {
				f := &Facts{OpenRecord: rows[i], Now: now}
				l.look(ctx, f, &retired)
				list[i] = f
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	wg.Wait()
	return list, nil
}

// look fills in the policy, and the lock of an open attempt.
func (l *Looker) look(ctx context.Context, f *Facts, retired *domains) {
	rec := &f.Record
	if f.Err != nil {
		return
	}
	if l.Policies != nil {
		if p, ok := l.Policies(rec.Route); ok {
			f.Policy = &p
		}
	}
	if !rec.State.Open() {
		return
	}
	f.Lock = LockUnknown
	if f.Retired, f.LockErr = retired.has(ctx, rec.Attempt.Fence.Domain); f.LockErr != nil {
		return
	}
	locks := l.Locks(rec)
	if locks == nil {
		f.Lock = LockElsewhere
		return
	}
	domain, err := locks.DomainOf(ctx, f.ID)
	if err != nil {
		f.LockErr = err
		return
	}
	if domain != rec.Attempt.Fence.Domain && !f.Retired {
		f.Lock = LockElsewhere
		return
	}
	holder, held, err := locks.HeldBy(ctx, f.ID)
	switch {
	case err != nil:
		f.LockErr = err
	case !held:
		f.Lock = LockFree
	case domain == driver.JoinedDomain, holder.Nonce == rec.Attempt.Nonce:
		f.Lock, f.Holder = LockOfAttempt, holder
	default:
		f.Lock, f.Holder = LockOfOther, holder
	}
}

// domains remembers for one listing which lock domains are retired.
type domains struct {
	store driver.Store

	mu    sync.Mutex
	known map[string]bool
}

func (d *domains) has(ctx context.Context, domain string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if retired, ok := d.known[domain]; ok {
		return retired, nil
	}
	retired, err := d.store.DomainRetired(ctx, domain)
	if err != nil {
		return false, err
	}
	if d.known == nil {
		d.known = make(map[string]bool)
	}
	d.known[domain] = retired
	return retired, nil
}

// FindOperation returns the key ID of an operation ID. It looks at the open records first, and
// then at every record, because an operation ID is a hash of the key ID. found is false if no
// record has it. The error wraps errors.ErrUnsupported if the store does not list its keys.
func (l *Looker) FindOperation(ctx context.Context, operation string) (id driver.KeyID, found bool, err error) {
	match := func(candidate driver.KeyID) bool {
		if candidate.OperationID() == operation {
			id, found = candidate, true
		}
		return !found
	}
	var failed error // of a part of the store
	for q := (driver.OpenQuery{}); !found; {
		page, err := l.Store.ListOpen(ctx, q)
		failed = cmp.Or(failed, err)
		for i := range page.Records {
			match(page.Records[i].ID)
		}
		if q.After = page.Next; q.After == nil {
			break
		}
	}
	if found {
		return id, true, nil
	}
	if failed != nil {
		return id, false, failed
	}
	in, ok := l.Store.(driver.StoreInspector)
	if !ok {
		return id, false, fmt.Errorf("the store does not list its keys: %w", errors.ErrUnsupported)
	}
	err = in.EachKey(ctx, match)
	return id, found, err
}
