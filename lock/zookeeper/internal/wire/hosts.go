package wire

import "sync"

// Hosts hands the servers to go-zookeeper by name and in turn. The library's own
// provider resolves all names once, at the first connect. It never finds an ensemble
// that has moved, and one bad name fails all.
//
// It also waits a second before the first reconnect to a single server, and that costs
// leases on short sessions.
type Hosts struct {
	mu      sync.Mutex
	servers []string
	next    int
	tries   int // since the last successful handshake
}

// Init implements zk.HostProvider. The servers come shuffled.
func (h *Hosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (h *Hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.servers)
}

// Next implements zk.HostProvider. When all servers have failed, the library fails the
// requests that wait and pauses for a second.
func (h *Hosts) Next() (server string, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next%len(h.servers)]
	all = h.tries > 0 && h.tries%len(h.servers) == 0
	h.next++
	h.tries++
	return server, all
}

// Connected implements zk.HostProvider.
func (h *Hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries = 0
}
