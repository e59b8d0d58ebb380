package zookeeper

import (
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A key that was released with a marker has a persistent znode in place of its
// lock, whose data is the marker. The lock is then an ephemeral child of it:
//
//	                 Mark(m)                      take
//	ephemeral P ───────────────▶ persistent P ◀─────────────▶ persistent P
//	    ▲ │                       (marker)     release,       └ ephemeral P/lock
//	    │ ▼ release                            Mark(m)               │
//	  nothing ◀──────────────────────────────────────────────────────┘ Mark(nil)
//
// Each arrow is one transaction. Fences grow along all of them: a lock's fence is
// the czxid of its own znode, wherever that is.

// lockChild follows the path of a marker in that of the lock below it.
const lockChild = "/lock"

// WithDurableMarkers lets the leases of a locker leave markers
// ([Lease.Mark]), which say by themselves that an operation was executed, or may
// have been, also where the token store has lost its record. Default: none are
// left. A marker that is there is heeded by every locker, with the option or
// without, so that it can be introduced, and given up, instance by instance.
//
// A marker stays until it is removed, see [Locker.RemoveMarkers], which somebody
// has to call. Meanwhile it is in the memory of every server of the ensemble: a
// million of them took 600 MB of heap where that was measured (ZooKeeper 3.8, a
// 64-bit JVM with compressed pointers), and 1 GB is to be planned for. So it is
// for short retention.
//
// Not covered: a holder that dies, or loses its lease, before it has left its
// marker; a lock that was deleted by hand; and what is older than the retention.
func WithDurableMarkers() LockerOption { return func(l *Locker) { l.marking = true } }

// marks is what a lease knows and leaves of its key's marker. The first four are
// set before there is a lease; the others are guarded by its mu.
type marks struct {
	on      bool         // Mark has an effect
	found   *idem.Marker // at the path when the lock was taken
	czxid   int64        // of the znode with that, like version
	version int32

	set  bool   // by Mark
	data []byte // of what is to be left; nil: nothing
}

var _ idem.MarkingLease = (*Lease)(nil)

// Marker implements [idem.MarkingLease]. It is nil for the leases of other
// recipes than [Locker].
func (l *Lease) Marker() *idem.Marker {
	if l.marks.found == nil {
		return nil
	}
	m := *l.marks.found
	return &m
}

// Mark implements [idem.MarkingLease]. It has no effect, and an existing marker
// stays, for leases of a [Locker] without [WithDurableMarkers] and of other
// recipes. A marker that cannot be read back, because its state is neither
// completed nor unknown or a name in it is too long, is logged and not left.
func (l *Lease) Mark(m *idem.Marker) {
	if !l.marks.on {
		return
	}
	var data []byte
	if m != nil {
		var err error
		if data, err = m.AppendBinary(nil); err != nil || parseMarker(data) == nil {
			l.s.log.Error("zookeeper: this marker cannot be left", "path", l.slot.path, "state", m.State, "error", err)
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.finished {
		l.marks.set, l.marks.data = true, data
	}
}

// legacy is what is to be done to the marker in the transaction that deletes the
// lock. The holder of the lock is the only one that touches it, so that no
// version is named.
func (l *Lease) legacy() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, path := &l.marks, l.slot.path
	switch found := m.found != nil; {
	case !m.set, !found && m.data == nil:
		return nil
	case !found:
		return []any{&zk.CreateRequest{Path: path, Data: m.data, Acl: l.s.cfg.ACL, Flags: zk.FlagPersistent}}
	case m.data == nil:
		return []any{&zk.DeleteRequest{Path: path, Version: -1}}
	}
	return []any{&zk.SetDataRequest{Path: path, Data: m.data, Version: -1}}
}

// parseMarker reads the data of a marker; nil where it is none.
func parseMarker(data []byte) *idem.Marker {
	var m idem.Marker
	if m.UnmarshalBinary(data) != nil {
		return nil
	}
	return &m
}

// notMarker is for a persistent znode where only locks and markers should be.
func notMarker(path string) error {
	return fmt.Errorf("zookeeper: %s is neither a lock nor a marker; somebody else made it", path)
}
