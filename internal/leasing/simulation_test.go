package leasing

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

var seeds = flag.Int("seeds", 100, "simulated runs")

// Lockers with clocks of different speeds, on machines that are suspended, use one key of a server that loses requests and
// answers, and gets requests late. No two leases are trusted at once by machines that run, fences grow, and in the end the lock can be taken.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range *seeds {
		synctest.Test(t, func(t *testing.T) {
			s := &server{rnd: rand.New(rand.NewPCG(uint64(seed), 0)), began: time.Now(), faults: true}
			var machines []*machine
			for range 3 {
				machines = append(machines, s.machine())
			}
			var users sync.WaitGroup
			for _, m := range machines {
				users.Go(func() {
					for time.Since(s.began) < 20*ttl {
						m.use(t, seed)
					}
				})
				users.Go(m.sleepNowAndThen)
			}
			users.Wait()
			s.mu.Lock()
			s.faults = false
			s.mu.Unlock()
			time.Sleep(10 * ttl) // every machine runs again
			ctx, cancel := context.WithTimeout(t.Context(), 4*ttl)
			defer cancel()
			if lease, err := driver.Acquire(ctx, machines[0], driver.LockRequest{}); err != nil {
				t.Errorf("seed %d: Acquire() = %v after the faults, want a lease", seed, err)
			} else {
				lease.ReleaseInBackground()
			}
			for _, m := range machines {
				if err := m.locker.Close(ctx); err != nil {
					t.Errorf("seed %d: Close() = %v", seed, err)
				}
			}
			time.Sleep(10 * ttl) // what is on its way arrives
		})
		if t.Failed() {
			return
		}
	}
}

// server has one lock.
type server struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	began   time.Time
	faults  bool
	owner   driver.Nonce
	expires time.Time
	last    uint64   // fence
	holder  *machine // whose lease is trusted
	lease   driver.Lease
}

// draw is a number below n.
func (s *server) draw(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// machine runs a locker. Its lease clock is up to 2.4 % wrong. While the machine is suspended, no request leaves and no answer is read. Its
// clock stands still, and jumps when it wakes up.
type machine struct {
	*server
	locker *Locker
	speed  float64

	mu     sync.Mutex
	asleep chan struct{} // closed when the machine wakes up; nil while it runs
	slept  time.Time     // since when
	cut    bool          // from the server
}

// TryAcquire lets the locker take the lock, or takes it as a store does that takes locks in its own calls.
func (m *machine) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	if m.draw(2) == 0 {
		return m.locker.TryAcquire(ctx, req)
	}
	o, err := m.locker.Offer(ctx, req)
	if err != nil {
		return nil, err
	}
	f, taken, err := m.Acquire(ctx, o.Lock())
	if err == nil && !taken {
		return nil, driver.ErrLocked
	}
	var lease *Lease
	if err == nil {
		lease, err = o.Taken(f)
	}
	for err != nil && ctx.Err() == nil {
		if lease, err = o.Retake(ctx); errors.Is(err, driver.ErrLocked) {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (m *machine) Wait(ctx context.Context, id driver.KeyID) error { return m.locker.Wait(ctx, id) }
func (m *machine) Ping(context.Context) error                      { return nil }
func (m *machine) Visibility() driver.Visibility                   { return driver.VisibilityShared }

func (s *server) machine() *machine {
	m := &machine{server: s, speed: 1 + (float64(s.draw(49))-24)/1000}
	m.locker = New(Config{Name: "lock/simulated", Service: m, TTL: ttl, Log: slog.New(slog.DiscardHandler), LookTimeout: time.Second,
		Now: func() leaseclock.Instant {
			m.mu.Lock()
			defer m.mu.Unlock()
			now := time.Now()
			if m.asleep != nil {
				now = m.slept
			}
			return leaseclock.Instant{}.Add(time.Hour + time.Duration(float64(now.Sub(s.began))*m.speed))
		}})
	return m
}

// awake waits until the machine runs.
func (m *machine) awake() {
	m.mu.Lock()
	asleep := m.asleep
	m.mu.Unlock()
	if asleep != nil {
		<-asleep
	}
}

func (m *machine) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asleep == nil
}

func (m *machine) isCut() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cut
}

// sleepNowAndThen suspends the machine.
func (m *machine) sleepNowAndThen() {
	for time.Since(m.began) < 20*ttl {
		time.Sleep(time.Duration(m.draw(int(8 * ttl))))
		m.suspend()
	}
}

// suspend suspends the machine, at times for longer than the time to live. It may be cut off from the server afterwards.
func (m *machine) suspend() {
	lasts, cut, cutFor := time.Duration(m.draw(int(2*ttl))), m.draw(2) == 0, time.Duration(m.draw(int(2*ttl)))
	woken := make(chan struct{})
	m.mu.Lock()
	if m.asleep != nil {
		m.mu.Unlock()
		return
	}
	m.asleep, m.slept = woken, time.Now()
	m.mu.Unlock()
	time.Sleep(lasts)
	m.mu.Lock()
	m.asleep, m.cut = nil, cut
	m.mu.Unlock()
	close(woken)
	time.Sleep(cutFor)
	m.mu.Lock()
	m.cut = false
	m.mu.Unlock()
}

// use takes the lock, believes in it for a while, and gives it back.
func (m *machine) use(t *testing.T, seed int) {
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	lease, err := driver.Acquire(ctx, m, driver.LockRequest{})
	m.awake()
	if err != nil || !trusted(lease) {
		return
	}
	m.server.mu.Lock()
	if m.holder != nil && m.holder.running() && trusted(m.lease) {
		t.Errorf("seed %d: two leases are trusted at once, %s and %s", seed, m.lease.Fence(), lease.Fence())
	}
	if m.lease != nil && !m.lease.Fence().Before(lease.Fence()) {
		t.Errorf("seed %d: fence %s after %s", seed, lease.Fence(), m.lease.Fence())
	}
	m.holder, m.lease = m, lease
	m.server.mu.Unlock()
	select {
	case <-lease.Done():
	case <-time.After(time.Duration(m.draw(int(2 * ttl)))):
	}
	m.awake()
	if m.draw(2) == 0 {
		_, _ = lease.Check(ctx)
	}
	switch m.draw(5) {
	case 0:
		lease.ReleaseInBackground()
	case 1: // as a store does, when there is nothing left to do under the lease
		m.server.mu.Lock()
		if m.lease == lease {
			m.holder = nil
		}
		m.server.mu.Unlock()
		if _, err := m.Remove(ctx, lease.(*Lease).lock, true); err == nil {
			lease.(*Lease).Returned()
			return
		}
		fallthrough
	default:
		_ = lease.Release(ctx)
	}
}

func trusted(lease driver.Lease) bool {
	if lease.Err() != nil {
		return false
	}
	select {
	case <-lease.Done():
		return false
	default:
		return true
	}
}

var errLost = errors.New("no answer")

// ask carries a request to the server, which may get it late, twice or not at all, and its answer back.
func (m *machine) ask(ctx context.Context, apply func()) error {
	m.awake()
	m.server.mu.Lock()
	fault, sleeps, there, back := 9, false, time.Duration(m.rnd.IntN(int(20*time.Millisecond))), time.Duration(m.rnd.IntN(int(20*time.Millisecond)))
	if m.faults {
		fault, sleeps = m.rnd.IntN(12), m.rnd.IntN(30) == 0
	}
	if m.isCut() {
		fault = 0
	}
	late := time.Duration(m.rnd.IntN(int(2 * ttl)))
	m.server.mu.Unlock()
	arrive := func(after time.Duration, answered chan<- struct{}) {
		time.Sleep(after)
		m.server.mu.Lock()
		apply()
		m.server.mu.Unlock()
		time.Sleep(back)
		close(answered)
	}
	answered, ignored := make(chan struct{}), make(chan struct{})
	switch fault {
	case 0: // lost
	case 1: // the answer is lost
		go arrive(there, ignored)
	case 2: // late, and its caller may still wait
		go arrive(late, answered)
	case 3: // a copy comes late
		go arrive(there, answered)
		go arrive(late, ignored)
	default:
		go arrive(there, answered)
	}
	if sleeps { // before the answer is read
		time.AfterFunc(there, m.suspend)
	}
	select {
	case <-answered:
	case <-ctx.Done():
	case <-time.After(time.Second): // of the client
	}
	m.awake()
	select { // the answer may have waited in the machine
	case <-answered:
		return nil
	default:
		return errLost
	}
}

func (m *machine) Admit(ctx context.Context, _ driver.KeyID) error { return ctx.Err() }

func (m *machine) Acquire(ctx context.Context, lock Lock) (f driver.Fence, taken bool, err error) {
	var at uint64
	err = m.ask(ctx, func() {
		switch {
		case m.owner == lock.Owner:
			m.expires = time.Now().Add(ttl)
		case m.owner != driver.Nonce{} && time.Now().Before(m.expires):
			return
		default:
			m.last = max(m.last+1, uint64(time.Since(m.began).Microseconds()))
			m.owner, m.expires = lock.Owner, time.Now().Add(ttl)
		}
		at = m.last
	})
	m.server.mu.Lock() // a copy may come meanwhile
	defer m.server.mu.Unlock()
	return driver.Fence{Domain: "d", Token: at}, at > 0 && err == nil, err
}

func (m *machine) Extend(ctx context.Context, locks []Lock) []error {
	answers := make([]error, len(locks))
	for i, lock := range locks {
		ours := false
		answers[i] = m.ask(ctx, func() {
			if ours = ours || m.owner == lock.Owner; m.owner == lock.Owner {
				m.expires = time.Now().Add(ttl)
			}
		})
		m.server.mu.Lock()
		if !ours && answers[i] == nil {
			answers[i] = ErrGone
		}
		m.server.mu.Unlock()
	}
	return answers
}

func (m *machine) Remove(ctx context.Context, lock Lock, _ bool) (found bool, err error) {
	var is bool
	err = m.ask(ctx, func() {
		if m.owner == lock.Owner {
			is, m.owner = true, driver.Nonce{}
		}
	})
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	return is && err == nil, err
}

func (m *machine) Remaining(ctx context.Context, _ driver.KeyID) (left time.Duration, err error) {
	var is time.Duration
	err = m.ask(ctx, func() {
		if m.owner != (driver.Nonce{}) {
			is = max(time.Until(m.expires), 0)
		}
	})
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	return is, err
}
