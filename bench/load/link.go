package load

import (
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// link is a connection through the proxy.
type link struct {
	*proxy
	ended   chan struct{}
	current atomic.Int64 // the number of the last request that the server was sent
}

// chunk is what one read returned. It has a number, see trips.
type chunk struct {
	data   []byte
	due    time.Time
	number int64
}

const (
	chunkSize = 64 << 10
	// underWay is more than a direction reads in a delay, so that the delay does not bound the bandwidth.
	underWay = 4096
)

// carry passes on what one side sends, each chunk after the delay. One goroutine reads, and another one
// waits and writes. So a chunk does not wait for the delay of those before it, and the order stays.
func (l *link) carry(from, to net.Conn, number func() int64, deliver func(int64)) {
	chunks := make(chan chunk, underWay)
	go func() {
		defer close(chunks)
		buffer := make([]byte, chunkSize)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			chunks <- chunk{slices.Clone(buffer[:n]), time.Now().Add(l.delay), number()}
		}
	}()
	l.write(chunks, to, deliver)
	l.ended <- struct{}{}
	for range chunks { // until both connections are closed, because the reader must not block
	}
}

func (l *link) write(chunks <-chan chunk, to net.Conn, deliver func(int64)) {
	a, err := newAlarm()
	if err != nil {
		return
	}
	defer a.close()
	for c := range chunks {
		if err := a.until(c.due); err != nil {
			return
		}
		deliver(c.number)
		if _, err := to.Write(c.data); err != nil {
			return
		}
	}
}

// The numbers of chunks in both directions.

func (l *link) ask() int64 { return l.trips.next() }

func (l *link) asked(number int64) { l.current.Store(number) }

func (l *link) reply() int64 { return l.current.Load() }

func (l *link) replied(number int64) { l.trips.replied(number, time.Now()) }
