package idem

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is the protocol of an engine from [New] whose lock and record are in one place, so that one call
// can do for both what lockmode.go does in several. The rules are those of lockmode.go. Only the trips are shared.
//
//	1  admit          refuse what needs no lock and no store    (engine.go, as in every mode)
//	2  waitForFirst   wait for a request in this process
//	3  look           read the record, replay it. If an attempt may begin,
//	4                 take the lock of the key, and
//	5                 write the attempt into the record, all in one trip
//	6  execute        run the handler
//	7  settle         write the outcome into the record, and release the lock in the same trip
//	8  answer
//
// The store may get a call twice, or late: copies come from the client's library, from the network, or from a server that was busy. A
// second copy does nothing more than the first one. A call has a last moment, after which the store heeds no copy of it.
//
// Step 3 takes nothing if the record answers the request or if the lock is held. Whatever is out of the ordinary goes
// on from there as in lockmode.go: an attempt in doubt, a stale fence, a store that cannot do both at the moment.

// combinedMode is a lockMode that looks, locks and begins in one call.
type combinedMode struct {
	*lockMode
	records driver.LockingStore
	locks   driver.OfferingLocker
}

// newCombinedMode returns false if store and locker of m are in two places.
func newCombinedMode(m *lockMode) (*combinedMode, bool) {
	records, ok := m.store.(driver.LockingStore)
	if !ok {
		return nil, false
	}
	locks, ok := m.locker.(driver.OfferingLocker)
	if !ok || m.history.locker != nil {
		return nil, false
	}
	space := records.LockSpace()
	return &combinedMode{m, records, locks}, space != nil && space == locks.LockSpace()
}

// look has the steps 3 to 5. It only reads if the request may not or cannot begin yet.
func (m *combinedMode) look(ctx context.Context, r *request) (looked, error) {
	if r.onlyReads || m.work.closing.Err() != nil || m.limit.full(r) || m.intake.refuses(r.id) != nil {
		return m.lockMode.look(ctx, r)
	}
	if !m.startLook(r) {
		return looked{}, errAgain
	}
	nonce := driver.NewNonce()
	offer, err := m.callOffer(ctx, r, nonce)
	if err != nil { // the record may answer the request all the same
		return m.lockMode.look(ctx, r)
	}
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	req := driver.BeginRequest{Kind: r.Policy.kind(), Route: r.Policy.Name, Nonce: nonce,
		Fingerprint: r.fingerprint, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL}
	var l looked
	err = m.inStep(detached, telemetry.StepBegin, r, m.cfg.storeTimeout, func(ctx context.Context) (err error) {
		l, err = m.begin(ctx, r, offer, req)
		return err
	})
	l.tries = true // a second question would be refused
	return l, err
}

// begin asks the store for the record, the lock and the attempt. The error is a refusal.
func (m *combinedMode) begin(ctx context.Context, r *request, offer driver.LockOffer, req driver.BeginRequest) (looked, error) {
	res, err := m.callBeginLocked(ctx, r, offer, req)
	if err != nil || res.Begun { // a read does not tell whether the store takes writes
		m.intake.note(r.id, err)
	}
	if unanswered(&res, req, err) {
		if err == nil {
			err = errors.New("idem: an earlier copy of the call has begun the attempt, and its lock is over")
		}
		m.undoOffered(ctx, r, offer, req, err)
		return looked{record: res.Record}, storeRefusal(err)
	}
	if err != nil || !res.Begun {
		return looked{record: res.Record, locked: res.Locked}, m.hasRead(ctx, r, &res.Record, err)
	}
	req.Fence = res.Record.Attempt.Fence
	offered, err := offer.Taken(req.Fence)
	if err != nil {
		m.undoOffered(ctx, r, offer, req, err)
		return looked{}, refuse(CodeUnavailable, err)
	}
	lease := &held{Lease: offered, offered: offered, mode: m.lockMode, nonce: req.Nonce}
	b := newBegun(res.Record, res.Replaced)
	if err := m.limit.enter(r); err != nil {
		m.neverRan(ctx, r, lease, b)
		return looked{}, err
	}
	started, err := m.started(ctx, r, lease, req, b)
	if err != nil {
		lease.letGo()
	}
	return looked{record: res.Record, begun: started, lease: lease}, err
}

// unanswered reports whether the lock may be taken, and the attempt may have begun, without our knowing.
func unanswered(res *driver.LockedBegin, req driver.BeginRequest, err error) bool {
	switch {
	case res.Begun:
		return err != nil
	case res.Record.State != driver.StateNone: // an earlier copy may have begun, and its lock may be over
		return res.Record.State.Open() && res.Record.Attempt.Nonce == req.Nonce
	case errors.Is(err, driver.ErrStoreLost), unreadable(err):
		return false
	}
	return err != nil
}

// callOffer has no error if the request may ask for the lock.
func (m *combinedMode) callOffer(ctx context.Context, r *request, nonce driver.Nonce) (offer driver.LockOffer, err error) {
	defer recovered("Offer", &err)
	return m.locks.Offer(ctx, driver.LockRequest{KeyID: r.id, Nonce: nonce})
}

func (m *combinedMode) callBeginLocked(ctx context.Context, r *request, offer driver.LockOffer, req driver.BeginRequest) (res driver.LockedBegin, err error) {
	defer func() {
		switch {
		case err == nil && res.Begun:
		case errors.Is(err, driver.ErrUnavailable) && res.Record.State == driver.StateNone:
			offer.NotTaken(err)
		default: // the store was asked, and an error concerns the record
			offer.NotTaken(nil)
		}
	}()
	defer recovered("BeginLocked", &err)
	return m.records.BeginLocked(ctx, r.id, req, offer.Lock())
}

// attempt has the steps 6 to 8 if the attempt has begun, and those of lockmode.go otherwise.
func (m *combinedMode) attempt(ctx context.Context, r *request, l looked, h Handler) (*Result, error) {
	switch {
	case l.begun != nil:
		defer l.lease.letGo()
		return m.carryOut(context.WithoutCancel(ctx), r, l.lease, l.begun, h)
	case l.locked:
		return m.elsewhere(ctx, r, l.record, m.locker.Wait)
	}
	return m.lockMode.attempt(ctx, r, l, h)
}

// settleUnlock settles under a lease, and gives its lock back if the settlement stands.
func (l *held) settleUnlock(ctx context.Context, id driver.KeyID, s driver.Settlement) (driver.SettleResult, error) {
	res, err := l.mode.store.(driver.LockingStore).SettleUnlock(ctx, id, s, l.offered.Lock())
	if err == nil && res.Settled {
		l.offered.Returned()
	}
	return res, err
}

// undoOffered takes back what a call without an answer may have done, in the background. It does not know the fence. So
// it takes the lock under the same owner, which gives it the lock that the call had taken, or shows that the call had not come.
// Then it undoes the attempt as lockmode.go does. If the lock cannot be taken until no copy of the call can come any more and its lock is over,
// it goes by the record alone. No handler ran under it.
func (m *combinedMode) undoOffered(ctx context.Context, r *request, offer driver.LockOffer, req driver.BeginRequest, cause error) {
	abandoned := func(err error) { m.observe(ctx, r, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: err}) }
	if !m.undoing.enter() {
		abandoned(errors.Join(errTooManyUndone, cause))
		return
	}
	// The undo may take long, and keeps no body in memory.
	r = &request{Operation: Operation{Policy: r.Policy}, id: r.id}
	last := time.Now().Add(m.cfg.storeTimeout + time.Second) // the store heeds no copy of the call after it
	m.work.inBackground(func(stop context.Context) {
		defer m.undoing.leave()
		if errors.Is(cause, driver.ErrNoWrites) && m.leftNoTrace(stop, r, req) { // nor a lock, which comes with the attempt
			return
		}
		pause := backoff{first: 20 * time.Millisecond, most: time.Second}
		for {
			lease, err := m.retake(stop, offer)
			if err == nil {
				m.undoUnder(stop, r, lease, func(held bool) error { return m.abortOffered(stop, r, lease, held, req) })
				lease.ReleaseInBackground()           // a second call does nothing
				if m.comesAgain(stop, r, req, last) { // its lock is left to its end, because a copy of the release may come too
					m.undoWithoutLock(stop, r, req, abandoned)
				}
				return
			}
			if time.Now().After(last.Add(offer.Lock().TTL)) {
				m.undoWithoutLock(stop, r, req, abandoned)
				return
			}
			if !sleep(stop, pause.next()) {
				abandoned(err)
				return
			}
		}
	}, abandoned)
}

// comesAgain waits for the last moment of a call that was undone, and reports whether a copy of it has begun
// the attempt after that. It can if another attempt has overwritten what the undo left in the record. It is false when the engine closes.
func (m *combinedMode) comesAgain(ctx context.Context, r *request, req driver.BeginRequest, last time.Time) bool {
	if left := time.Until(last); left <= 0 || !sleep(m.work.closing, left) {
		return false
	}
	rec, err := m.attemptOf(ctx, r, req)
	return err == nil && rec.State.Open()
}

// undoWithoutLock undoes a call whose lock is over, or not ours to give back. The next holder may have found the attempt.
func (m *combinedMode) undoWithoutLock(ctx context.Context, r *request, req driver.BeginRequest, abandoned func(error)) {
	for pause := (backoff{first: time.Second, most: 10 * time.Second}); ; {
		rec, err := m.attemptOf(ctx, r, req)
		if err == nil && !rec.State.Open() {
			return
		}
		if err == nil {
			req.Fence = rec.Attempt.Fence
			err = m.abort(ctx, r, new(held), false, req)
		}
		if err == nil {
			m.observe(ctx, r, telemetry.Event{Type: telemetry.EventBeginAborted})
			return
		}
		if unreadable(err) || !sleep(ctx, pause.next()) {
			abandoned(err)
			return
		}
	}
}

// retake takes the lock of an offer by its owner.
func (m *combinedMode) retake(ctx context.Context, offer driver.LockOffer) (lease *held, err error) {
	defer recovered("Retake", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	defer cancel()
	offered, err := offer.Retake(call)
	if err != nil {
		return nil, err
	}
	return &held{Lease: offered, offered: offered, mode: m.lockMode, nonce: offer.Lock().Nonce, handedOver: true}, nil
}

// abortOffered undoes the attempt of a call once. If the lock of the call was over before the lease took it anew, the
// attempt has another fence than the lease. Without an attempt, it makes the store refuse the call if it comes later.
func (m *combinedMode) abortOffered(ctx context.Context, r *request, lease *held, held bool, req driver.BeginRequest) error {
	rec, err := m.attemptOf(ctx, r, req)
	if err != nil {
		return err
	}
	if req.Fence = rec.Attempt.Fence; req.Fence == (driver.Fence{}) {
		req.Fence = lease.Fence()
	}
	return m.abort(ctx, r, lease, held, req)
}

// attemptOf reads the record if it is of the attempt of a call. Otherwise it returns the zero record.
func (m *combinedMode) attemptOf(ctx context.Context, r *request, req driver.BeginRequest) (rec driver.Record, err error) {
	defer recovered("Get", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	rec, err = m.store.Get(call, r.id)
	if errors.Is(err, driver.ErrStoreLost) { // it has no record
		err = nil
	}
	if rec.Attempt.Nonce != req.Nonce {
		rec = driver.Record{}
	}
	return rec, err
}
