package zookeeper

import (
	"encoding/binary"
	"slices"
	"time"
)

// answers follows what a server sends through a connection after its answer to the
// connect. Each answer is a frame: length (4 bytes), xid (4), zxid (8), and the rest.
// The zxid is that of the last transaction that the server had applied.
type answers struct {
	head   [zxidEnd]byte // of the present frame, as it was sent
	at     int           // in the frame
	hidden bool          // the library gets it with a zxid of 0
}

const (
	xidAt, zxidAt, zxidEnd = 4, 8, 16

	// pingXid is the xid of pings. The answer to one tells how far the server is. It
	// shows nothing of what is there.
	pingXid = -2
)

// hiding is for how long zxids are hidden from a library that has connected
// again and has not repeated its watches: by then it has none to repeat.
const hiding = 10 * time.Second

// next takes the next bytes. It tells seen the zxid of every answer, which is -1 for
// the events of watches. Where hide is true at the beginning of a frame, it hides the
// frame's zxid, in place.
//
// The library puts the last zxid that it has seen into the request that repeats its
// watches, and notes down that of each answer on another goroutine, without a lock
// between them. It does not note down a 0. So a watch may fire for a change that was
// seen before, which is expected everywhere here. What the library knows is of no
// use for a connect then: see resume.
func (a *answers) next(p []byte, hide func() bool, seen func(zxid int64)) {
	for len(p) > 0 {
		if a.at == 0 {
			a.hidden = hide()
		}
		n := 1
		if a.at < zxidEnd {
			a.head[a.at] = p[0]
			if a.hidden && a.at >= zxidAt {
				p[0] = 0
			}
		} else {
			n = min(len(p), a.end()-a.at)
		}
		p = p[n:]
		a.at += n
		if a.at == zxidEnd && int32(binary.BigEndian.Uint32(a.head[xidAt:])) != pingXid {
			seen(int64(binary.BigEndian.Uint64(a.head[zxidAt:])))
		}
		if a.at >= 4 && a.at >= a.end() {
			a.at = 0
		}
	}
}

// end is where the frame ends, once its length is known.
func (a *answers) end() int { return 4 + int(binary.BigEndian.Uint32(a.head[:])) }

// resume returns a connect request with the highest zxid that its session has seen. A
// server that is behind that refuses the client, which then asks another one: so no
// later connection of a session shows it an older state than an earlier one has.
//
// The request is a frame as well: length (4 bytes), version (4), zxid (8), and the rest.
func resume(request []byte, zxid int64) []byte {
	if len(request) < zxidEnd {
		return request
	}
	request = slices.Clone(request) // it is the library's
	binary.BigEndian.PutUint64(request[zxidAt:], uint64(zxid))
	return request
}
