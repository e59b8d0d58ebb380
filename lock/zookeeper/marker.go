package zookeeper

import (
	"bytes"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A marked key has a persistent znode in place of its lock, whose data is the
// marker. The lock is then an ephemeral child of it:
//
//	              MarkBegun
//	ephemeral P ──────────────▶ persistent P ──┐ MarkBegun, another marker
//	    ▲ │                     └ P/lock ◀─────┘
//	    │ │                        │  ▲ │
//	    │ │ release            take│  │ │ release, MarkOnRelease(m), or the session's end
//	    │ ▼     MarkOnRelease(nil) │  │ ▼
//	  nothing ◀────────────────────┘ persistent P
//
// Each arrow is one transaction. A lease's fence is the czxid of the znode by which
// its lock was taken. All later znodes have greater czxids, so that fences grow
// along all of these arrows.

// lockChild follows the path of a marker in that of the lock below it.
const lockChild = "/lock"

// WithDurableMarkers lets the leases of a locker leave markers
// ([Lease.MarkBegun], [Lease.MarkOnRelease]), which say by themselves that an operation was
// executed, or may have been, also where the token store has lost its record.
// Default: none are left. A marker that is there is heeded by every locker, with the option or
// without, so that it can be introduced, and given up, instance by instance.
//
// A marker stays until it is removed, see [Locker.RemoveMarkers], which somebody
// has to call. Meanwhile it is in the memory of every server of the ensemble: a
// million of them took 600 MB of heap where that was measured (ZooKeeper 3.8, a
// 64-bit JVM with compressed pointers), and 1 GB is to be planned for. So it is
// for short retention.
//
// A marker is there before its operation starts, so that it tells of an execution
// whatever becomes of the holder. Not covered: a lock that was deleted by hand, and
// what is older than the retention.
func WithDurableMarkers() LockerOption { return func(l *Locker) { l.marking = true } }

// marks is what a lease knows and leaves of its key's marker. The first five are
// set before there is a lease; the others are guarded by its mu.
type marks struct {
	on      bool         // MarkBegun and Mark have an effect
	owner   []byte       // the data of the lock's znode
	found   *idem.Marker // at the path when the lock was taken
	czxid   int64        // of the znode with that, like version
	version int32

	there []byte   // the data at the path now; nil: no marker; inDoubt: one of two
	under *marking // under way; nil: none
	bare  bool     // the servers refuse a marker here

	set  bool   // by Mark
	data []byte // of what is to be left; nil: nothing
}

// inDoubt stands for the data of a marker that may have been set, and is no marker's.
var inDoubt = []byte("?")

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

// MarkOnRelease implements [idem.MarkingLease]. It has no effect, and an existing marker
// stays, for leases of a [Locker] without [WithDurableMarkers] and of other
// recipes. A marker that cannot be read back, because its state is neither
// completed nor unknown or a name in it is too long, is logged and not left.
func (l *Lease) MarkOnRelease(m *idem.Marker) {
	if !l.marks.on {
		return
	}
	var data []byte
	if m != nil {
		var err error
		if data, err = encodeMarker(m); err != nil {
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
	switch {
	case !m.set, m.bare, bytes.Equal(m.data, m.there):
		return nil
	case m.there == nil:
		return []any{&zk.CreateRequest{Path: path, Data: m.data, Acl: l.s.cfg.ACL, Flags: zk.FlagPersistent}}
	case m.data == nil:
		return []any{&zk.DeleteRequest{Path: path, Version: -1}}
	}
	return []any{&zk.SetDataRequest{Path: path, Data: m.data, Version: -1}}
}

// encodeMarker is the data of a marker. It fails where that could not be read back.
func encodeMarker(m *idem.Marker) ([]byte, error) {
	data, err := m.AppendBinary(nil)
	if err == nil && parseMarker(data) == nil {
		err = fmt.Errorf("zookeeper: no marker is in state %v", m.State)
	}
	return data, err
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
