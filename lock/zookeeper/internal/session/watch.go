package session

import (
	"maps"
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

// WatchKey names a watch.
type WatchKey struct {
	Path string
	Kind Kind
}

// Watches are the watches of a session. mu is taken before status.mu.
type Watches struct {
	status   *Status
	requests *requests
	reads    *Reads

	mu  sync.Mutex
	all map[WatchKey]*Watch
}

// Of returns the watch of a path, and makes it if necessary. If fit is not nil and
// refuses the result of the read, the watch is woken at once.
func (ws *Watches) Of(path string, kind Kind, fit func(Hint) bool) *Watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := WatchKey{path, kind}
	if w := ws.all[key]; w != nil {
		return w
	}
	w := &Watch{armed: make(chan struct{}), woken: make(chan struct{})}
	ws.all[key] = w
	if !ws.status.Go(func() { ws.arm(key, w, fit) }) {
		w.err = ws.status.Err()
		ws.fire(key)
		close(w.armed)
	}
	return w
}

// questions are the reads for each kind.
var questions = map[Kind]Question{OnNode: ofNodeW, OnExists: ofExistsW, OnChildren: ofChildrenW}

// Watched returns all watches. It is for tests. No other way shows that a caller waits already, or
// that a call has left no watch.
func (ws *Watches) Watched() map[WatchKey]*Watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return maps.Clone(ws.all)
}

// arm makes the read.
func (ws *Watches) arm(key WatchKey, w *Watch, fit func(Hint) bool) {
	defer close(w.armed)
	gen, gone := ws.requests.connection()
	w.node, w.err = ws.reads.Hint(key.Path, questions[key.Kind])
	if w.err == nil && (w.node.Exists || key.Kind == OnExists) && (fit == nil || fit(w.node)) {
		return
	}
	if now, err := ws.requests.connection(); w.err != nil && ws.status.Err() == nil && (gone != nil || err != nil || now != gen) {
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
func (ws *Watches) onEvent(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.Server != "":
		ws.requests.onState(ev.State)
		return
	case ev.Type == zk.EventSession, ev.Type == zk.EventNotWatching:
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ev.Type != zk.EventNodeChildrenChanged {
		ws.fire(WatchKey{ev.Path, OnNode})
		ws.fire(WatchKey{ev.Path, OnExists})
	}
	if ev.Type != zk.EventNodeDataChanged {
		ws.fire(WatchKey{ev.Path, OnChildren})
	}
}

// fire wakes the waiters of a watch. Needs mu.
func (ws *Watches) fire(key WatchKey) {
	if w := ws.all[key]; w != nil {
		delete(ws.all, key)
		close(w.woken)
	}
}

// fireAll wakes all waiters.
func (ws *Watches) fireAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for key := range ws.all {
		ws.fire(key)
	}
}
