package wire

import (
	"encoding/binary"
	"slices"
)

// Each frame begins with its length, which does not count itself. Integers are big-endian
// (zookeeper.jute).

// connectRequest is the first frame of a client.
type connectRequest struct {
	Length, Version uint32
	Zxid            int64 // the highest one seen by the client
	Timeout         int32 // ms
	Session         int64
	Secret          uint32 // the length of the password
	Password        [16]byte
	ReadOnly        bool
}

// connectAnswer is the beginning of a server's first frame. The session's password
// follows.
type connectAnswer struct {
	Length, Version uint32
	Timeout         int32 // ms
	Session         int64 // 0 if the server does not know the session any more
}

// maxGreeting bounds the first frame of a server. Servers send 41 bytes.
const maxGreeting = 1 << 10

// The beginning of all other frames of a server is length (4 bytes), xid (4) and zxid
// (8). The zxid names the last transaction applied by the server.
const xidAt, zxidAt, zxidEnd = 4, 8, 16

// pingXid is the xid of pings. The answer to a ping tells how far the server is. It shows
// nothing of the server's data.
const pingXid = -2

// hide passes the zxid of an answer to seen, and sets it to zero for the library. The
// zxid of a watch event is -1.
//
// The library repeats its watches with the last zxid it has seen. It stores the zxid
// of each answer on another goroutine, without a lock between the two, but it does not
// store a zero. So it repeats its watches with zero, and they may fire for old changes.
// The callers of this package expect that.
func hide(answer []byte, seen func(zxid int64)) {
	if len(answer) < zxidEnd {
		return
	}
	if int32(binary.BigEndian.Uint32(answer[xidAt:])) != pingXid {
		seen(int64(binary.BigEndian.Uint64(answer[zxidAt:])))
	}
	clear(answer[zxidAt:zxidEnd])
}

// resume returns a connect request with the highest zxid that its session has seen. A
// stale server refuses the client, and the library asks another one. So no later
// connection of a session shows an older state than an earlier one has shown.
func resume(request []byte, zxid int64) []byte {
	if len(request) < zxidEnd {
		return request
	}
	request = slices.Clone(request) // the original belongs to the library
	binary.BigEndian.PutUint64(request[zxidAt:], uint64(zxid))
	return request
}
