package wire

import (
	"encoding/binary"
	"slices"
	"time"
)

// answers follows the stream of a server after its answer to the connect. Each answer is a
// frame of length (4 bytes), xid (4), zxid (8), and the rest. The zxid names the last
// transaction applied by the server.
type answers struct {
	head   [zxidEnd]byte // of the present frame, as it was sent
	at     int           // in the frame
	hidden bool          // the library gets this frame with a zxid of 0
}

const (
	xidAt, zxidAt, zxidEnd = 4, 8, 16

	// pingXid is the xid of pings. The answer to a ping tells how far the server is.
	// It shows nothing of the server's data.
	pingXid = -2
)

// hiding is how long zxids are hidden from a library after a connect, if it repeats no
// watches. By then it has no watches to repeat.
const hiding = 10 * time.Second

// next takes the next bytes. It passes the zxid of every answer to seen. The zxid of a
// watch event is -1. If hide is true at the beginning of a frame, next hides the
// frame's zxid, in place.
//
// The library repeats its watches with the last zxid it has seen. It stores the zxid of
// each answer on another goroutine, without a lock between the two. It does not store a
// 0. So a watch may fire for an old change, and every caller here expects that. The
// library's own zxid is therefore useless for a connect. See resume.
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

// resume returns a connect request with the highest zxid seen by its session. A stale
// server refuses the client, and the library asks another one. So no later connection of
// a session shows an older state than an earlier one has shown.
//
// The request is also a frame, of length (4 bytes), version (4), zxid (8), and the rest.
func resume(request []byte, zxid int64) []byte {
	if len(request) < zxidEnd {
		return request
	}
	request = slices.Clone(request) // the original belongs to the library
	binary.BigEndian.PutUint64(request[zxidAt:], uint64(zxid))
	return request
}
