package zookeeper

import "sync"

// hosts hands the servers to go-zookeeper by name and in turn. The library's
// own provider resolves all names once, at the first connect: an ensemble that
// moves is never found again, and one bad name fails all.
//
// It is also kinder to a single server: the library waits a second before the
// first reconnect to it, which costs leases on short sessions.
type hosts struct {
	mu      sync.Mutex
	servers []string
	next    int
	tries   int // since the last successful handshake
}

// Init implements zk.HostProvider. The servers come shuffled.
func (h *hosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (h *hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.servers)
}

// Next implements zk.HostProvider. All servers having failed, the library
// fails what waits to be sent and pauses for a second.
func (h *hosts) Next() (server string, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next%len(h.servers)]
	all = h.tries > 0 && h.tries%len(h.servers) == 0
	h.next++
	h.tries++
	return server, all
}

// Connected implements zk.HostProvider.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries = 0
}
