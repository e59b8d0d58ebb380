package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// wait is a call for the lease of any recipe.
type wait func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error)

// leaseOf makes a nil lease a nil interface.
func leaseOf[L interface {
	comparable
	driver.Lease
}](l L, err error) (driver.Lease, error) {
	var none L
	if l == none {
		return nil, err
	}
	return l, err
}

// recipes of this package, and what a caller waits for behind them.
func recipesOfOneLine() map[string]struct{ holds, wants wait } {
	mutex := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(MustNewMutex(c, linePath).Acquire(ctx))
	}
	reentrant := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(MustNewReentrantMutex(c, linePath).Acquire(ctx, "owner"))
	}
	read := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(MustNewRWMutex(c, linePath).AcquireRead(ctx))
	}
	write := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(MustNewRWMutex(c, linePath).AcquireWrite(ctx))
	}
	permits := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(semAsk(c, 2, 2)(ctx))
	}
	campaign := func(ctx context.Context, c *zookeeper.Client) (driver.Lease, error) {
		return leaseOf(MustNewElection(c, linePath, "candidate").Campaign(ctx))
	}
	return map[string]struct{ holds, wants wait }{
		"mutex": {mutex, mutex}, "reentrant mutex": {reentrant, reentrant}, "semaphore": {permits, permits}, "election": {campaign, campaign},
		"reader behind a writer": {write, read}, "writer behind a writer": {write, write}, "writer behind a reader": {read, write},
	}
}

// A waiter's turn comes while its client is suspended, because a holder of the same client has let
// go. The waiter gets its lease after the reconnect and not before.
func TestSuspendedClientGivesOutNoLease(t *testing.T) {
	t.Parallel()
	for name, recipe := range recipesOfOneLine() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := still(t) // so the waiter's look at the line is young, however slow the machine is
			counter := r.Proxy.Count(r.Config.Chroot + linePath)
			holder, err := recipe.holds(bounded(t), r.Client)
			if err != nil {
				t.Fatal(err)
			}
			type answer struct {
				lease     driver.Lease
				err       error
				suspended error // at the time of the answer
			}
			answers := make(chan answer, 1)
			go func() {
				l, err := recipe.wants(bounded(t), r.Client)
				answers <- answer{l, err, sessionOf(r.Client).Session.Status.Usable()}
			}()
			until(t, "the waiter to have looked at the line", func() bool {
				seen := counter.Seen()
				return len(r.places()) == 2 && seen.Unanswered == 0 && seen.Requests[testserver.OpGetChildren2] >= 2
			})
			r.suspend()
			holder.ReleaseInBackground()
			await(t, "end of the first lease", holder.Done())
			r.Proxy.Refuse(false)
			got := <-answers
			if got.err != nil || got.suspended != nil {
				t.Fatalf("acquire = %v while the client was suspended (%v), want a lease after the reconnect", got.err, got.suspended)
			}
			recipetest.Release(t, got.lease)
		})
	}
}

// suspend keeps the client behind the proxy from the servers.
func (r *rig) suspend() {
	r.Helper()
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	until(r, "suspended", func() bool { return sessionOf(r.Client).Session.Status.Usable() != nil })
}

// A waiter that gives up while its client is suspended has no lock, although its turn has come. Its
// error says that ZooKeeper could not be asked.
func TestTurnGivenUpWhileSuspended(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	before, second := pairOf(t, r.Client)
	r.suspend()
	alone := []line.Position{second.place.Position} // seen before the connection broke
	if _, _, err := second.judge(canceled(t), first, alone); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("judge() = %v, want %v and its cause", err, driver.ErrUnavailable)
	}
	before.ReleaseInBackground()
	handed, err := second.awaitHandOver(canceled(t), before, second.held.Table().Client.Now())
	for err != nil && errors.Is(err, driver.ErrLocked) { // it saw the end of its context first
		handed, err = second.awaitHandOver(canceled(t), before, second.held.Table().Client.Now())
	}
	if handed || !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) || second.Err() != nil {
		t.Errorf("awaitHandOver() = %t, %v, want %v and its cause", handed, err, driver.ErrUnavailable)
	}
	r.Proxy.Refuse(false)
	releaseAll(t, []*Lease{second})
}

// The connection breaks right after the servers have made a znode. The lease comes after the
// reconnect.
func TestLeaseComesAfterTheReconnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	table := sessionOf(r.Client)
	claim, _, err := table.Claim(r.Config.Chroot + "/held")
	if err != nil {
		t.Fatal(err)
	}
	made, suspended, granted := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		l, err := claim.Acquire(bounded(t), held.Znode{Make: func(a *held.Attempt) (string, int64, error) {
			r := a.Table.Session.Writes.Do(a.Table.Client.Ephemeral(claim.Path(), nil))
			close(made)
			<-suspended
			return claim.Path(), r.Zxid, r.Err
		}})
		if err == nil {
			err = table.Session.Status.Usable()
			l.ReleaseInBackground()
		}
		granted <- err
	}()
	await(t, "znode", made)
	r.suspend()
	close(suspended)
	r.Proxy.Refuse(false)
	if err := <-granted; err != nil {
		t.Errorf("Acquire() = %v, want a lease after the reconnect", err)
	}
}
