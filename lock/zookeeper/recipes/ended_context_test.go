package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A call that could not ask the servers says so. It does not report an empty line, or success.
func TestCallsTellOfTheirEndedContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	mutex, reentrant, rw := MustNewMutex(r.Client, "/m"), MustNewReentrantMutex(r.Client, "/m"), MustNewRWMutex(r.Client, "/rw")
	election, sem, reg := MustNewElection(r.Client, "/e", "one"), MustNewSemaphore(r.Client, "/s", 2), MustNewRegister(r.Client, "/reg")
	list := func(f func(context.Context) ([]Participant, error)) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := f(ctx)
			return err
		}
	}
	for name, call := range map[string]func(context.Context) error{
		"Mutex.Participants": list(mutex.Participants), "Mutex.Revoke": mutex.Revoke,
		"ReentrantMutex.Participants": list(reentrant.Participants), "ReentrantMutex.Revoke": reentrant.Revoke,
		"RWMutex.Participants": list(rw.Participants), "Semaphore.Participants": list(sem.Participants),
		"Election.Participants": list(election.Participants), "Election.Revoke": election.Revoke,
		"Register.Load": func(ctx context.Context) error { _, _, err := reg.Load(ctx); return err },
		"Register.Save": func(ctx context.Context) error { return reg.Save(ctx, nil, 0) },
	} {
		if err := call(canceled(t)); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() = %v, want %v with its cause", name, err, driver.ErrUnavailable)
		}
	}
	if err := r.Client.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Register.Load": func(ctx context.Context) error { _, _, err := reg.Load(ctx); return err },
		"Register.Save": func(ctx context.Context) error { return reg.Save(ctx, nil, 0) },
		"Mutex.Revoke":  mutex.Revoke, "Mutex.Participants": list(mutex.Participants),
	} {
		if err := call(bounded(t)); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() of a closed client = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
}

// A client with too many locks takes no place.
func TestTooManyLocks(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.MaxLocksPerSession = 1
	c := open(t, cfg)
	one, err := MustNewMutex(c, "/one").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := MustNewMutex(c, "/two").TryAcquire(bounded(t)); !errors.Is(err, driver.ErrUnavailable) || l != nil {
		t.Errorf("TryAcquire() of a second lock = %v, %v, want %v", l, err, driver.ErrUnavailable)
	}
	releaseAll(t, []*Lease{one})
	if n := sessionOf(c).Session.Trust.Held(); n != 0 {
		t.Errorf("the session has %d holds after the release, want 0", n)
	}
	two, err := MustNewMutex(c, "/two").TryAcquire(bounded(t))
	if err != nil {
		t.Fatalf("TryAcquire() after the release = %v", err)
	}
	releaseAll(t, []*Lease{two})
}

// The parent that a place was made with goes with it, so a path with a number in it leaves
// nothing. A line that others made, or that is used again, keeps its parent.
func TestPlaceTakesItsParentAlong(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	there := func(path string) bool {
		t.Helper()
		ok, _, err := r.Raw.Exists(r.Config.Chroot + path)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	use := func(m *Mutex) {
		t.Helper()
		l, err := m.Acquire(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if l, err := m.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) { // this is no use of the line
			t.Errorf("TryAcquire() = %v, %v, want %v", l, err, driver.ErrLocked)
		}
		recipetest.Idle(r, r.Client)
		recipetest.Release(r, l)
	}
	m := MustNewMutex(r.Client, "/fresh")
	if use(m); there("/fresh") {
		t.Error("the parent is there after its only use")
	}
	if use(m); !there("/fresh") {
		t.Error("the parent is gone after its second use")
	}
	create(t, r.Raw, r.Config.Chroot+"/made", zk.FlagPersistent)
	if use(MustNewMutex(r.Client, "/made")); !there("/made") {
		t.Error("a parent that was made by hand is gone")
	}
}

// A place with data of another application is listed, by its name alone.
func TestParticipantWithForeignData(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	l, err := m.AcquireRead(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	path, _ := l.held.Where()
	if _, err := r.Raw.Set(path, []byte(`{"host":"h","pid":"not a number"}`), -1); err != nil {
		t.Fatal(err)
	}
	if p, err := m.Participants(bounded(t)); err != nil || len(p) != 1 || p[0].Role != RoleRead || p[0].Host != "" || p[0].Fence != l.Fence() || !p[0].Holds {
		t.Errorf("Participants() = %+v, %v, want a reader without a host", p, err)
	}
	recipetest.Release(r, l)
}
