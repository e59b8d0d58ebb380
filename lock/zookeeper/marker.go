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

// marker is the knowledge of a lock about its key's marker, and the change that the release
// will make to the marker.
type marker struct {
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

var _ marks = (*marker)(nil)

// place implements [marks]. It depends on the znode at the key's path, and that znode may change
// at any time before the create.
//
//	nothing            the lock is the znode itself
//	an ephemeral znode another owner holds the lock
//	a marker           the lock is its child
//	anything else      an error
//
// The cases exclude each other. An ephemeral znode has no children, so the child's create
// proves that there is no ephemeral znode at the path. A znode with a child cannot be
// deleted. So while the child is there, only its holder changes the marker.
func (m *marker) place() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marked {
		return m.path + lockChild
	}
	return m.path
}

// follow implements [marks].
func (m *marker) follow(r session.Result, n session.Decided) (moved bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	persistent := n.Exists && n.Session == 0
	switch {
	case m.marked && persistent:
		return false, notMarker(m.path + lockChild)
	case persistent && parseMarker(n.Data) == nil:
		return false, notMarker(m.path)
	case persistent:
		m.marked = true
		return true, nil
	case m.marked && (r.RefusedBy(zk.ErrNoNode) || r.RefusedBy(zk.ErrNoChildrenForEphemerals)):
		m.marked = false
		return true, nil
	}
	return false, nil
}

// confirm implements [marks]. It reads the marker above the lock. This is a deciding read, sent
// after the create is known to be applied. So it shows the marker as it was then or later, and only
// the holder of the lock changes it.
func (m *marker) confirm() (ok bool, err error) {
	if m.place() == m.path {
		return true, nil
	}
	n, err := m.s.session.Reads.Decide(m.path, session.OfNode)
	if err != nil || !n.Exists || n.Session != 0 {
		return false, err
	}
	m.found, m.czxid, m.version = parseMarker(n.Data), n.Czxid, n.Version
	if m.found == nil {
		return false, notMarker(m.path)
	}
	m.there = n.Data
	return true, nil
}

// leave implements [marks]. Only the holder of the lock touches the marker, so the operations name no
// version. If the servers refuse to remove a marker, the lock goes without it.
func (m *marker) leave(refused *session.Result) (ops []any, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case refused != nil && refused.RefusedAt(1, zk.ErrNotEmpty):
		m.s.log.Error("zookeeper: marker cannot be removed, it has foreign znodes below it", "path", m.path)
		return nil, true
	case refused != nil:
		return nil, false
	case !m.leaves():
		return nil, true
	case !m.marked:
		return []any{m.s.table.Client.Persistent(m.path, m.data)}, true
	case m.data == nil:
		return []any{&zk.DeleteRequest{Path: m.path, Version: -1}}, true
	}
	return []any{&zk.SetDataRequest{Path: m.path, Data: m.data, Version: -1}}, true
}

// leaves reports whether the release changes the marker. Needs mu.
func (m *marker) leaves() bool {
	same := m.marked == (m.data != nil) && bytes.Equal(m.data, m.there)
	return m.set && !m.bare && !same
}

// vanished implements [marks]. It warns if a lock was deleted by hand and its release had to leave,
// change or remove a marker.
func (m *marker) vanished() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaves() {
		m.s.log.Warn("zookeeper: lock vanished before its release, the key's marker stays as it is", "path", m.path)
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
