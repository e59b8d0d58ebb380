package recipes

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
)

// Semaphore lets callers have so many permits between them, in the order in
// which they asked, over all processes. It is not reentrant. It is safe for
// concurrent use; Semaphores of one path, in this process or any other, share
// its permits, and have to agree on how many there are.
//
// Each caller has an ephemeral sequential znode below the path, which says how
// many permits it wants. It has them when they, and those that anyChange before
// it wants, are no more than there are. So who has permits follows from the line
// alone, a big request is not starved by small ones behind it, and a caller may
// have to wait although there are enough permits for it, because one before it
// wants more. Any permit released may be what a waiter needs, so all of them
// look again whenever anybody comes or goes; the waiters of a process share that
// look. (Recipes that watch one znode before their own, N places ahead, miss the
// release of another one.)
//
// A lease is for all the permits of its Acquire, and gives them back together.
// Its fence is that of its place in line: greater than those of all that asked
// before. As several leases are good at once and work in any order, a resource
// must not refuse one because it has seen a greater fence; a fence tells an
// owner apart, no more. With one permit it is that of a [Mutex].
type Semaphore struct {
	ln      *lineup
	permits int
}

// NewSemaphore returns the semaphore on an absolute path below the chroot, which
// has so many permits. Its parents are made when they are missing, and the path
// itself goes some time after its last use. The znode there keeps the number of
// permits: see [ErrPermitsMismatch].
func NewSemaphore(in zookeeper.Root, path string, permits int) *Semaphore {
	ln := newLineup(in, path)
	p := permitCount{Permits: permits}
	ln.data, ln.agreed = p.encode(), p.agreed
	return &Semaphore{ln: ln, permits: permits}
}

// Acquire waits for n permits. Retries and errors are those of [Mutex.Acquire];
// besides, the error wraps [ErrPermitsMismatch] where the path has another
// number of permits, and an n that there can never be is refused at once.
func (sem *Semaphore) Acquire(ctx context.Context, n int) (*Lease, error) {
	if err := sem.check(n); err != nil {
		return nil, err
	}
	return sem.ln.acquire(ctx, weight(n), sem.enough)
}

// TryAcquire returns n permits if they are free and nobody waits, and an error
// that wraps idem.ErrLocked if not.
func (sem *Semaphore) TryAcquire(ctx context.Context, n int) (*Lease, error) {
	if err := sem.check(n); err != nil {
		return nil, err
	}
	return sem.ln.tryAcquire(ctx, weight(n), sem.enough)
}

func (sem *Semaphore) check(n int) error {
	if n < 1 || n > sem.permits {
		return fmt.Errorf("zookeeper: semaphore %s: %d permits wanted, want 1 to %d", sem.ln.name, n, sem.permits)
	}
	return nil
}

// enough is the rule of a semaphore: what a place and all before it want is no
// more than there is. It stays so, as nobody comes before a place.
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

// wants reads a place's role. A place of anything else wants all there is.
func (sem *Semaphore) wants(p line.Position) int {
	number, ok := strings.CutPrefix(p.Role, permitsRole)
	if n, err := strconv.Atoi(number); ok && err == nil && n > 0 {
		return n
	}
	return sem.permits
}

// permitsRole is followed by how many in the role of a semaphore's places.
const permitsRole = "permits"

func weight(n int) string { return permitsRole + strconv.Itoa(n) }
