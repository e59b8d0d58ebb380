package zookeeper

import (
	"bytes"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// onRead matches a read at path that leaves no watch.
func onRead(path string) testserver.Match {
	return func(req testserver.Request) bool {
		return req.Op == testserver.OpGetData && bytes.HasSuffix(req.Payload, []byte(path+"\x00"))
	}
}

// Each create finds the lock of another owner, and each read finds that it has gone. The attempt
// ends after some tries, without a lease.
func TestLockThatChangesDuringEveryTry(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	create, read := r.proxy.HoldNext(r.onLock()), r.proxy.HoldNext(onRead(r.path))
	acquired := make(chan error, 1)
	go func() { _, err := r.l.TryAcquire(bounded(t), request(r.id)); acquired <- err }()
	for range held.MaxTries {
		await(t, "create", create.Held())
		theirs := r.take(r.other)
		create.Release()
		await(t, "read", read.Held())
		r.release(theirs)
		create = r.proxy.HoldNext(r.onLock())
		next := r.proxy.HoldNext(onRead(r.path))
		read.Release()
		read = next
	}
	if err := <-acquired; !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
	}
	create.Release()
	read.Release()
	r.idle(r.c)
	r.release(r.take(r.l))
}

// The reply to the create below a marker is lost. A read finds the lock, and then an operator
// changes what is above it.
func TestMarkerChangesAfterALostCreate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*rig)
		err    error
	}{
		{"deleted", func(r *rig) { r.delete(r.path+lockChild, r.path) }, nil},
		{"written over", func(r *rig) {
			if _, err := r.raw.Set(r.path, []byte("mine"), -1); err != nil {
				r.Error(err)
			}
		}, driver.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			r.mark(completed())
			connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := r.proxy.DropNextReply(r.onChild())
			acquired := make(chan error, 1)
			var lease driver.Lease
			go func() {
				var err error
				lease, err = r.l.TryAcquire(bounded(t), request(r.id))
				acquired <- err
			}()
			await(t, "the loss", lost)
			await(t, "reconnect", connect.Held())
			read := r.proxy.HoldNext(onRead(r.path))
			connect.Release()
			await(t, "read of the marker", read.Held())
			tt.change(r)
			read.Release()
			err := <-acquired
			if !errors.Is(err, tt.err) {
				t.Fatalf("TryAcquire() = %v, want %v", err, tt.err)
			}
			if err == nil {
				r.wantHeld(lease.(*Lease))
				wantFound(t, lease.(*Lease), nil)
				r.release(lease.(*Lease))
			}
			if there, _, err := r.raw.Exists(r.path + lockChild); there || err != nil {
				t.Errorf("Exists(%s) = %t, %v; want no lock", r.path+lockChild, there, err)
			}
			r.idle(r.c)
		})
	}
}

// delete is what an operator deletes by hand.
func (r *rig) delete(paths ...string) {
	r.Helper()
	for _, path := range paths {
		if err := r.raw.Delete(path, -1); err != nil {
			r.Errorf("Delete(%s) = %v", path, err)
		}
	}
}
