package idem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// noteEvery is the pause between two notes of the highest fence in the store. If the lock service
// loses less than that, the records themselves tell of it.
const noteEvery = time.Second

// history has the highest known fence of each lock domain in use. A locker has one domain, unless
// it spreads its keys over several services.
type history struct {
	locker driver.HistoryLocker // nil if the lock service cannot come back with older data

	mu     sync.Mutex
	known  map[string]domainFences
	over   map[string]bool // domains that an event has called over
	noting bool
}

// domainFences are tokens of a domain.
type domainFences struct {
	highest uint64 // known
	noted   uint64 // in the store
}

func (h *history) init(l driver.Locker) {
	h.locker, _ = l.(driver.HistoryLocker)
	h.known, h.over = make(map[string]domainFences), make(map[string]bool)
}

// highest is the highest known fence of each domain.
func (h *history) highest() (fences []driver.Fence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for domain, d := range h.known {
		fences = append(fences, driver.Fence{Domain: domain, Token: d.highest})
	}
	return fences
}

func (h *history) saw(f driver.Fence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.known[f.Domain]
	d.highest = max(d.highest, f.Token)
	h.known[f.Domain] = d
}

// leaves forgets a domain that is over. It reports whether no event has said so before.
func (h *history) leaves(domain string) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, h.over[domain] = !h.over[domain], true
	delete(h.known, domain)
	return first
}

// unnoted returns the fences that the store does not have.
func (h *history) unnoted() (fences []driver.Fence) {
	for domain, d := range h.known {
		if d.highest > d.noted {
			fences = append(fences, driver.Fence{Domain: domain, Token: d.highest})
		}
	}
	return fences
}

// inHistory reports whether a new lease follows all earlier ones of its domain. known has the
// highest fences from before the lease was asked for. The first lease of a domain in this process
// is compared with what the store has. That costs calls of the store, and later leases cost none.
//
// It does not matter that the lock service has lost data, but that fences go back. If other
// writes have moved it past the highest fence, its fences are as good as before.
func (m *lockMode) inHistory(ctx context.Context, r *request, lease *held, known []driver.Fence) (bool, error) {
	f := lease.Fence()
	seen, first := driver.Fence{Domain: f.Domain}, true
	for _, k := range known {
		if k.Domain == f.Domain {
			seen, first = k, false
		}
	}
	if first {
		for _, k := range known { // it may have come in the place of one of these
			if _, err := m.renewDomain(ctx, r, k); err != nil {
				return false, err
			}
		}
		var err error
		if seen, err = m.notedFence(ctx, f.Domain); err != nil {
			return false, err
		}
	}
	if f.Before(seen) {
		if renewed, err := m.renewDomain(ctx, r, seen); renewed || err != nil {
			return false, err
		}
	}
	m.history.saw(f)
	m.noteFences()
	return true, nil
}

// overDomain is the token of a fence that a retired domain never reaches. A lock service whose domain
// was retired may be taken into use again. Others would take its holders for dead.
const overDomain = math.MaxInt64

// notedFence is the highest fence of a domain that the store knows.
func (m *lockMode) notedFence(ctx context.Context, domain string) (driver.Fence, error) {
	if retired, err := m.callDomainRetired(ctx, domain); err != nil || retired {
		return driver.Fence{Domain: domain, Token: overDomain}, err
	}
	token, err := m.callHighestFence(ctx, domain)
	return driver.Fence{Domain: domain, Token: token}, err
}

func (m *lockMode) callHighestFence(ctx context.Context, domain string) (token uint64, err error) {
	defer recovered("HighestFence", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	return m.store.HighestFence(call, domain)
}

func (m *lockMode) callNoteFence(ctx context.Context, f driver.Fence) (err error) {
	defer recovered("NoteFence", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	return m.store.NoteFence(call, f)
}

// noteFences keeps the highest known fences in the store, in the background.
func (m *lockMode) noteFences() {
	h := &m.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.noting && h.unnoted() != nil {
		h.noting = true
		m.work.inBackground(m.keepNoting, func(error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.noting = false
		})
	}
}

// keepNoting notes the highest fences once in a while, as long as they rise, and once more in the
// end.
func (m *lockMode) keepNoting(ctx context.Context) {
	h := &m.history
	h.mu.Lock()
	defer h.mu.Unlock()
	for last := false; !last; {
		fences := h.unnoted()
		if last = m.work.closing.Err() != nil; fences == nil {
			break
		}
		h.mu.Unlock()
		for i, f := range fences {
			if m.callNoteFence(ctx, f) != nil {
				fences[i].Token = 0
			}
		}
		if !last {
			sleep(m.work.closing, noteEvery)
		}
		h.mu.Lock()
		for _, f := range fences {
			if d, ok := h.known[f.Domain]; ok {
				d.noted = max(d.noted, f.Token)
				h.known[f.Domain] = d
			}
		}
	}
	h.noting = false
}

// renewDomain asks the locker for another domain if its service has lost a fence that was seen.
func (m *lockMode) renewDomain(ctx context.Context, r *request, seen driver.Fence) (renewed bool, err error) {
	if m.history.locker == nil {
		return false, nil
	}
	defer recovered("RenewDomain", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	defer cancel()
	renewed, err = m.history.locker.RenewDomain(call, seen)
	if renewed && m.history.leaves(seen.Domain) {
		m.observe(ctx, r, telemetry.Event{Type: telemetry.EventDomainRenewed, Err: fmt.Errorf("idem: the lock domain %s is over, because the lock service lacks its fence %d, or is another one; its records stay in progress until it is retired", seen.Domain, seen.Token)})
	}
	return renewed, err
}

// lostFence reports whether the lock service has lost the fence that makes that of the lease
// stale. The next lease has another domain then.
func (m *lockMode) lostFence(ctx context.Context, r *request, lease *held) bool {
	if m.history.locker == nil {
		return false
	}
	rec, err := m.read(ctx, r)
	if err != nil {
		return false
	}
	r.open = r.open || used(rec.State) // the request starts over, and may not read as much again
	if !lease.Fence().Before(rec.Attempt.Fence) {
		return false
	}
	renewed, err := m.renewDomain(ctx, r, rec.Attempt.Fence)
	return renewed && err == nil
}

var errDomainChanges = errors.New("idem: the lock domain kept changing")
