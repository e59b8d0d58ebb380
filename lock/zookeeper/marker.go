package zookeeper

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A marked key has a persistent znode in place of its lock, whose data is the
// marker. The lock is then an ephemeral child of it:
//
//	              MarkBegun
//	ephemeral P ──────────────▶ persistent P ──┐ MarkBegun, another marker
//	    ▲ │                     └ P/lock ◀─────┘
//	    │ │                        │  ▲ │
//	    │ │ release            take│  │ │ release, Mark(m), or the session's end
//	    │ ▼          Mark(nil)     │  │ ▼
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

// marks is what a lease knows and leaves of its key's marker.
type marks struct {
	s     *locks
	path  string // of the key
	owner held.Owner
	on    bool // MarkBegun and Mark have an effect

	// Set before there is a lease.
	hopeful bool         // the parent of the lock may be missing
	found   *idem.Marker // at the path when the lock was taken
	czxid   int64        // of the znode with that, like version
	version int32

	mu     sync.Mutex
	marked bool   // the lock is below a marker
	there  []byte // the data at the path now; nil: no marker; inDoubt: one of two
	bare   bool   // the servers refuse a marker here
	set    bool   // by Mark
	data   []byte // of what is to be left; nil: nothing
}

// at is where the lock is.
func (m *marks) at() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marked {
		return m.path + lockChild
	}
	return m.path
}

// inDoubt stands for the data of a marker that may have been set. It is not the data of any
// marker.
var inDoubt = []byte("?")

var _ idem.MarkingLease = (*Lease)(nil)

// Marker implements [idem.MarkingLease].
func (l *Lease) Marker() *idem.Marker {
	if l.marks.found == nil {
		return nil
	}
	m := *l.marks.found
	return &m
}

// MarkOnRelease implements [idem.MarkingLease]. Without [WithDurableMarkers] it has no effect, and
// an existing marker stays. A marker that cannot be read back is logged and not left: its
// state is neither completed nor unknown, or a name in it is too long.
func (l *Lease) MarkOnRelease(m *idem.Marker) {
	if !l.marks.on {
		return
	}
	var data []byte
	if m != nil {
		var err error
		if data, err = encodeMarker(m); err != nil {
			l.marks.s.Log.Error("zookeeper: this marker cannot be left", "path", l.marks.path, "state", m.State, "error", err)
			return
		}
	}
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	if l.Over() == nil {
		l.marks.set, l.marks.data = true, data
	}
}

// deletion deletes the lock, and in the same transaction leaves, changes or removes the
// marker. Only the holder of the lock touches the marker, so no version is named. If the
// servers refuse to remove a marker, the lock goes without it.
func (m *marks) deletion(_ *held.Lease, refused *session.Result) []any {
	ops := []any{&zk.DeleteRequest{Path: m.at(), Version: -1}}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case refused != nil && refused.RefusedAt(1, zk.ErrNotEmpty):
		m.s.Log.Error("zookeeper: marker cannot be removed, somebody made znodes below it", "path", m.path)
		m.bare = true
		return ops
	case refused != nil:
		return nil
	case !m.leaves():
		return ops
	case m.there == nil:
		return append(ops, m.s.Persistent(m.path, m.data))
	case m.data == nil:
		return append(ops, &zk.DeleteRequest{Path: m.path, Version: -1})
	}
	return append(ops, &zk.SetDataRequest{Path: m.path, Data: m.data, Version: -1})
}

// leaves reports whether the release changes the marker. Needs mu.
func (m *marks) leaves() bool { return m.set && !m.bare && !bytes.Equal(m.data, m.there) }

// vanished tells the operator of a lock that was deleted by hand, if its marker could not
// be left, changed or removed for that reason.
func (m *marks) vanished() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaves() {
		m.s.Log.Warn("zookeeper: lock vanished before its release, the key's marker stays as it is", "path", m.path)
	}
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
