package session

import (
	"sync"

	"github.com/go-zookeeper/zk"
)

// Kind is the purpose of a watch.
type Kind uint8

const (
	// OnNode watches the data of an existing znode, and its end.
	OnNode Kind = iota
	// OnExists is OnNode, and watches for a missing znode to be created.
	OnExists
	// OnChildren watches the list of a znode's children, and its end.
	OnChildren
)

// Watch is shared by all waiters for one path and kind. One read leaves a watch with the
// server. An event on the path wakes it, and so do a reconnect and the session's end. All
// of them only mean "look again".
//
// The server's watch cannot be taken back. So a watch without waiters is kept for the
// next ones until it fires.
type Watch struct {
	armed, woken chan struct{}
	node         Hint
	err          error
}

// Armed is closed when the watch is there, or could not be made.
func (w *Watch) Armed() <-chan struct{} { return w.armed }

// Woken is closed when it is time to look again. If the watch could not be made, that is
// at once, or at the reconnect if the connection broke.
func (w *Watch) Woken() <-chan struct{} { return w.woken }

// Found returns the result of the read. It may be called once Armed is closed.
func (w *Watch) Found() (Hint, error) { return w.node, w.err }

type watchKey struct {
	path string
	kind Kind
}

// watches are the watches of a session. mu is taken before status.mu.
type watches struct {
	*requests

	mu  sync.Mutex
	all map[watchKey]*Watch
}

// Watch returns the watch of a path, and makes it if necessary. If fit is not nil and
// refuses the result of the read, the watch is woken at once.
func (ws *watches) Watch(path string, kind Kind, fit func(Hint) bool) *Watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := watchKey{path, kind}
	if w := ws.all[key]; w != nil {
		return w
	}
	w := &Watch{armed: make(chan struct{}), woken: make(chan struct{})}
	ws.all[key] = w
	if !ws.Go(func() { ws.arm(key, w, fit) }) {
		w.err = ws.Err()
		ws.fire(key)
		close(w.armed)
	}
	return w
}

// Watching returns the watch of a path, or nil.
func (ws *watches) Watching(path string, kind Kind) *Watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.all[watchKey{path, kind}]
}

// questions are the reads for each kind.
var questions = map[Kind]Question{OnNode: ofNodeW, OnExists: ofExistsW, OnChildren: ofChildrenW}

// Watched lists the paths of all watches.
func (ws *watches) Watched() (paths []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for key := range ws.all {
		paths = append(paths, key.path)
	}
	return paths
}

// arm makes the read.
func (ws *watches) arm(key watchKey, w *Watch, fit func(Hint) bool) {
	defer close(w.armed)
	gen, gone := ws.connection()
	w.node, w.err = ws.Hint(key.path, questions[key.kind])
	if w.err == nil && (w.node.Exists || key.kind == OnExists) && (fit == nil || fit(w.node)) {
		return
	}
	if now, err := ws.connection(); w.err != nil && ws.Err() == nil && (gone != nil || err != nil || now != gen) {
		return // the reconnect wakes it
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all[key] == w {
		ws.fire(key)
	}
}

// onEvent is the library's callback. The library's own events name their server. A
// server may send a session event as well, but it says nothing new.
func (ws *watches) onEvent(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.Server != "":
		ws.onState(ev.State)
		return
	case ev.Type == zk.EventSession, ev.Type == zk.EventNotWatching:
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ev.Type != zk.EventNodeChildrenChanged {
		ws.fire(watchKey{ev.Path, OnNode})
		ws.fire(watchKey{ev.Path, OnExists})
	}
	if ev.Type != zk.EventNodeDataChanged {
		ws.fire(watchKey{ev.Path, OnChildren})
	}
}

// fire wakes the waiters of a watch. Needs mu.
func (ws *watches) fire(key watchKey) {
	if w := ws.all[key]; w != nil {
		delete(ws.all, key)
		close(w.woken)
	}
}

// fireAll wakes all waiters.
func (ws *watches) fireAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for key := range ws.all {
		ws.fire(key)
	}
}
