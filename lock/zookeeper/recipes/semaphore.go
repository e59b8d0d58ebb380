package recipes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Semaphore shares a number of permits among callers of all processes, in the order in which
// they asked. It is not reentrant. It is safe for concurrent use. Semaphores of one path share
// its permits, and must agree on their number.
//
// Each caller has an ephemeral sequential znode below the path with the number of permits it
// wants. It has them when its number and the numbers of all callers before it fit into the
// total. So the line alone decides, and small requests never starve a big one in front of them.
// A caller may wait although enough permits are free for it, because a caller before it wants
// more. Any release may help any waiter, so all waiters look again at every change of the line.
// The waiters of a process share that look.
//
// A lease is for all permits of its Acquire, and gives them back together. Its fence is greater
// than those of all callers that asked before. Several leases are good at once and work in any
// order. So a resource must not refuse a fence because it has seen a greater one. The fence only
// tells one owner from another. With one permit it is that of a [Mutex].
type Semaphore struct {
	ln      *lineup
	permits int
}

// ErrPermitsMismatch means that a [Semaphore] has another number of permits than the znode at
// its path. The error names both. The first user of the path sets the number. It is forgotten
// with the znode, some time after the last use. Do not change it while the semaphore is in use.
var ErrPermitsMismatch = errors.New("zookeeper: semaphores of one path do not agree on the number of permits")

// permitCount is the data of the parent of a semaphore's places.
type permitCount struct {
	Permits int `json:"permits"`
}

// permitsRole and a number are the role of a semaphore's places.
const permitsRole = "permits"

// NewSemaphore returns the semaphore on an absolute path below the chroot. Missing parents are
// made. The servers remove the path some time after its last use. The znode there keeps the
// number of permits, see [ErrPermitsMismatch]. The error is that of [NewMutex], or for fewer than one
// permit.
func NewSemaphore(in zookeeper.Space, path string, permits int) (*Semaphore, error) {
	ln, err := newLineup(in, path)
	if err != nil {
		return nil, err
	}
	if permits < 1 {
		return nil, fmt.Errorf("zookeeper: semaphore %s: %d permits, want 1 or more", ln.name, permits)
	}
	sem := &Semaphore{ln, permits}
	ln.data, ln.agreed = fmt.Appendf(nil, `{"permits":%d}`, permits), sem.agreed
	return sem, nil
}

// MustNewSemaphore is [NewSemaphore] for known-good wiring. It panics where NewSemaphore returns an
// error.
func MustNewSemaphore(in zookeeper.Space, path string, permits int) *Semaphore {
	return held.Must(NewSemaphore(in, path, permits))
}

// Acquire waits for n permits. Retries and errors are those of [Mutex.Acquire]. The error wraps
// [ErrPermitsMismatch] if the path has another number of permits. Acquire refuses an n outside 1
// to that number at once.
func (sem *Semaphore) Acquire(ctx context.Context, n int) (*Lease, error) {
	return sem.get(ctx, n, sem.ln.acquire)
}

// TryAcquire returns n permits if they are free and no caller waits. Otherwise the error wraps
// driver.ErrLocked.
func (sem *Semaphore) TryAcquire(ctx context.Context, n int) (*Lease, error) {
	return sem.get(ctx, n, sem.ln.tryAcquire)
}

func (sem *Semaphore) get(ctx context.Context, n int, how func(context.Context, string, rule) (*Lease, error)) (*Lease, error) {
	if n < 1 || n > sem.permits {
		return nil, fmt.Errorf("zookeeper: semaphore %s: %d permits wanted, want 1 to %d", sem.ln.name, n, sem.permits)
	}
	return how(ctx, permitsRole+strconv.Itoa(n), sem.enough)
}

// enough is the rule of a semaphore. A place has its turn when its permits and those of all
// places before it fit into the total. It keeps its turn, because no place comes before it.
func (sem *Semaphore) enough(all []line.Position, me int) (turn bool, behind int) {
	left := sem.permits
	for _, p := range all[:me+1] {
		n := sem.wants(p)
		if n > left {
			return false, anyChange
		}
		left -= n
	}
	return true, 0
}

// wants reads a place's role. A place of another kind wants all permits.
func (sem *Semaphore) wants(p line.Position) int {
	number, ok := strings.CutPrefix(p.Role, permitsRole)
	if n, err := strconv.Atoi(number); ok && err == nil && n > 0 {
		return n
	}
	return sem.permits
}

// agreed compares the number of permits with the parent's. If the parent has no number, agreed
// writes it, and the first of several writers wins.
//
// It reads the parent while there is a place below it. The place is granted only after it has
// been seen again. In between the parent cannot have been removed and made again with another
// number, because the place would have gone with it. So two places are never granted on
// different numbers.
func (sem *Semaphore) agreed(ctx context.Context, l *Lease) error {
	t, ln := l.held.Table(), sem.ln
	for {
		n, err := t.Session.Reads.DecideFor(ctx, ln.path, session.OfNode)
		switch {
		case err != nil:
			return l.notYet(ctx, fmt.Errorf("%w: %w", driver.ErrUnavailable, err))
		case !n.Exists:
			return l.held.Lose()
		case len(n.Data) > 0:
			var there permitCount
			if err := json.Unmarshal(n.Data, &there); err != nil || there.Permits < 1 {
				return fmt.Errorf("%w: this one has %d, and the data of %s, which should have the number, is %.40q", ErrPermitsMismatch, sem.permits, ln.name, n.Data)
			}
			if there.Permits != sem.permits {
				return fmt.Errorf("%w: this one has %d, %s has %d", ErrPermitsMismatch, sem.permits, ln.name, there.Permits)
			}
			return nil
		}
		r := once.Write(ctx, t, nil, &zk.SetDataRequest{Path: ln.path, Data: ln.data, Version: n.Version})
		if r.Outcome != session.Applied && !r.RefusedBy(zk.ErrBadVersion) {
			return l.notYet(ctx, fmt.Errorf("%w: set the number of permits of %s: %w", driver.ErrUnavailable, ln.name, r.Err))
		}
	}
}

// Participants lists the holders of permits and the waiters, in the order in which they asked.
// See [Mutex.Participants].
func (sem *Semaphore) Participants(ctx context.Context) ([]Participant, error) {
	them, err := sem.ln.participants(ctx, sem.enough, wholeLine)
	for i := range them {
		them[i].Permits = sem.wants(line.Position{Role: them[i].Role})
		them[i].Role = ""
	}
	return them, err
}
