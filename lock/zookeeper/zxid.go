package zookeeper

import "time"

// hiding is for how long zxids are hidden from a library that has connected
// again and has not repeated its watches: by then it has none to repeat.
const hiding = 10 * time.Second

// zxidMask hides the zxids of answers from the library while it prepares to
// repeat its watches: it reads the last zxid that it has seen for that, and notes
// down that of each answer on another goroutine, without a lock between them. An
// answer whose zxid is 0 it does not note down. (It uses the number when it
// repeats watches and when it connects; an older one means a watch that fires
// for a change that was seen before, or a server that lags behind, and both are
// expected everywhere here.)
//
// An answer is a frame: length (4 bytes), xid (4), zxid (8), and the rest.
type zxidMask struct {
	at     int // in the frame
	length int // of the frame, behind the length itself
}

const zxidAt, zxidEnd = 8, 16

// apply changes the next bytes of the answers in place. settled is asked at the
// beginning of each frame; from when it is true nothing is changed any more, and
// apply returns true.
func (m *zxidMask) apply(p []byte, settled func() bool) (done bool) {
	for len(p) > 0 {
		if m.at == 0 && settled() {
			return true
		}
		n := 1
		switch {
		case m.at < 4:
			m.length = m.length<<8 | int(p[0])
		case m.at >= zxidAt && m.at < zxidEnd:
			p[0] = 0
		case m.at >= zxidEnd:
			n = min(len(p), 4+m.length-m.at)
		}
		p = p[n:]
		if m.at += n; m.at >= 4+m.length && m.at >= 4 {
			*m = zxidMask{}
		}
	}
	return false
}
