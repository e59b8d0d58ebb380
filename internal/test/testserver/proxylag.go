package testserver

import "encoding/binary"

// zkNoNode is ZooKeeper's error for a path with no znode
// (org.apache.zookeeper.KeeperException.Code.NONODE).
const zkNoNode int32 = -101

// Lag makes the server look stale on all connections accepted from now on, like a
// follower that was suspended. Matching reads of ZooKeeper find no znode. A
// connection catches up with the first transaction sent over it, since a server
// answers the requests of a session in order, and a transaction after all earlier
// ones are applied. Lag(nil) ends the fault, also for connections that have not
// caught up.
func (p *Proxy) Lag(m Match) { p.LagTo(m, nil) }

// LagTo is Lag to a time when the znode was there. answer is the part after the
// header of the server's reply to a matching read at that time, or nil for no znode.
func (p *Proxy) LagTo(m Match, answer []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag, p.lagTo = m, answer
}

// Lagged returns how many reads were answered from the past so far.
func (p *Proxy) Lagged() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lagged
}

// stale reports whether a request is to be answered from the past, and lets the link
// catch up with a transaction.
func (p *Proxy) stale(l *link, req Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch req.Op {
	case OpMulti:
		l.behind = false
	case OpGetData, OpExists, OpGetChildren, OpGetChildren2:
		if l.behind && p.lag != nil && p.lag(req) {
			p.lagged++
			return true
		}
	}
	return false
}

// fromThePast replaces the answer to a read by the one of an earlier time.
func (p *Proxy) fromThePast(frame []byte) []byte {
	const header = 4 + 8 + 4 // xid, zxid, error
	if len(frame) < 4+header {
		return frame
	}
	p.mu.Lock()
	answer := p.lagTo
	p.mu.Unlock()
	code := zkNoNode
	if answer != nil {
		code = 0
	}
	frame = append(frame[:4+header:4+header], answer...)
	binary.BigEndian.PutUint32(frame, uint32(header+len(answer)))
	binary.BigEndian.PutUint32(frame[4+12:], uint32(code))
	return frame
}
