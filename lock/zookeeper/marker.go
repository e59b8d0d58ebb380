package zookeeper

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A marked key has a persistent znode in place of its lock. The data of the persistent
// znode is the marker, and the lock is its ephemeral child.
//
//	              MarkBegun
//	ephemeral P ──────────────▶ persistent P ──┐ MarkBegun, another marker
//	    ▲ │                     └ P/lock ◀─────┘
//	    │ │                        │  ▲ │
//	    │ │ release            take│  │ │ release, MarkOnRelease(m), or the session's end
//	    │ ▼  MarkOnRelease(nil)    │  │ ▼
//	  nothing ◀────────────────────┘ persistent P
//
// Each arrow is one transaction. The fence of a lease is the czxid of the lock's znode at
// the time when the lock was taken. All later znodes have greater czxids, so fences grow
// along all of these arrows.

// lockChild is the name of a lock below its marker.
const lockChild = "/lock"

// WithDurableMarkers lets the leases of a locker leave markers ([Lease.MarkBegun],
// [Lease.MarkOnRelease]). A marker says that an operation was executed, or may have been,
// even if the token store has lost its record. A locker leaves no markers by default. But
// every locker heeds existing markers, with the option or without. So a service can
// introduce markers, or give them up, one instance after the other.
//
// The application has to call [Locker.RemoveMarkers]. Until then a marker stays in the
// memory of every server of the ensemble. A million markers took 600 MB of heap in a
// measurement (ZooKeeper 3.8, a 64-bit JVM with compressed pointers). So plan for 1 GB, and
// for a short retention.
//
// The marker exists before its operation starts, so it tells of an execution even if the
// holder dies. Markers do not cover a lock deleted by hand, nor an operation older than the
// retention.
func WithDurableMarkers() LockerOption { return func(l *Locker) { l.marking = true } }

// marks is the knowledge of a lease about its key's marker, and the change that the release
// will make to the marker.
type marks struct {
	s     *locks
	path  string // of the key
	owner held.Owner
	on    bool // MarkBegun and MarkOnRelease have an effect

	// Set before there is a lease.
	found   *driver.Marker // at the path when the lock was taken
	czxid   int64          // of the znode of found, like version
	version int32

	mu     sync.Mutex
	marked bool   // the lock is below a marker
	there  []byte // the data of the marker above the lock, or nil if not known
	bare   bool   // the servers refuse a marker here
	set    bool   // by MarkOnRelease
	data   []byte // of the marker to leave, or nil to leave no marker
}

// at is the path of the lock.
func (m *marks) at() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marked {
		return m.path + lockChild
	}
	return m.path
}

var _ driver.MarkingLease = (*Lease)(nil)

// Marker implements [driver.MarkingLease].
func (l *Lease) Marker() *driver.Marker {
	if l.marks.found == nil {
		return nil
	}
	m := *l.marks.found
	return &m
}

// LeavesMarkers implements [driver.MarkingLease]. It is true with [WithDurableMarkers].
func (l *Lease) LeavesMarkers() bool { return l.marks.on }

// MarkOnRelease implements [driver.MarkingLease]. Without [WithDurableMarkers] it has no
// effect, and an existing marker stays. If a marker could not be read back, because of its
// state or because a name is too long, MarkOnRelease logs an error and changes nothing.
func (l *Lease) MarkOnRelease(m *driver.Marker) {
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
	if l.held.Over() == nil {
		l.marks.set, l.marks.data = true, data
	}
}

// deletion deletes the lock, and in the same transaction leaves, changes or removes the
// marker. Only the holder of the lock touches the marker, so the operations name no
// version. If the servers refuse to remove a marker, the lock goes without it.
func (m *marks) deletion(_ *held.Lease, refused *session.Result) []any {
	ops := []any{&zk.DeleteRequest{Path: m.at(), Version: -1}}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case refused != nil && refused.RefusedAt(1, zk.ErrNotEmpty):
		m.s.Log.Error("zookeeper: marker cannot be removed, it has foreign znodes below it", "path", m.path)
		return ops
	case refused != nil:
		return nil
	case !m.leaves():
		return ops
	case !m.marked:
		return append(ops, m.s.Persistent(m.path, m.data))
	case m.data == nil:
		return append(ops, &zk.DeleteRequest{Path: m.path, Version: -1})
	}
	return append(ops, &zk.SetDataRequest{Path: m.path, Data: m.data, Version: -1})
}

// leaves reports whether the release changes the marker. Needs mu.
func (m *marks) leaves() bool {
	same := m.marked == (m.data != nil) && bytes.Equal(m.data, m.there)
	return m.set && !m.bare && !same
}

// vanished warns if a lock was deleted by hand and its release had to leave, change or
// remove a marker.
func (m *marks) vanished() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaves() {
		m.s.Log.Warn("zookeeper: lock vanished before its release, the key's marker stays as it is", "path", m.path)
	}
}

// encodeMarker returns the data of a marker. It fails if parseMarker would refuse the data.
func encodeMarker(m *driver.Marker) ([]byte, error) {
	data, err := m.AppendBinary(nil)
	if err == nil && parseMarker(data) == nil {
		err = fmt.Errorf("zookeeper: no marker is in state %v", m.State)
	}
	return data, err
}

// parseMarker reads the data of a marker. It returns nil for other data.
func parseMarker(data []byte) *driver.Marker {
	var m driver.Marker
	if m.UnmarshalBinary(data) != nil {
		return nil
	}
	return &m
}

// notMarker is the error for a persistent znode in the place of a lock or marker.
func notMarker(path string) error {
	return fmt.Errorf("zookeeper: %s is neither a lock nor a marker, another application made it", path)
}
