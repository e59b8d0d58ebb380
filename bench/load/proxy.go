package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// proxyRequest is a question to the process that stands between the services and the servers. One of its
// parts is set.
type proxyRequest struct {
	Delay  time.Duration // added in each direction, the first question of all
	Target string        // open another way to this server
	Begin  bool          // count trips from now on
	Until  time.Time     // the trips that were complete at this time
}

type proxyAnswer struct {
	Address string // of the new way
	Trips   int
	Error   string
}

// proxy delays what the services and the servers send to each other. It is a process of its own, so that its
// processor time is not that of a service.
type proxy struct {
	delay  time.Duration
	trips  trips
	chunks chan chunk
}

// newProxy starts to write. It ends with the process.
func newProxy(delay time.Duration) (*proxy, error) {
	p := &proxy{delay: delay, chunks: make(chan chunk, underWay)}
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	go p.write(a)
	return p, nil
}

// serveProxy opens ways and counts trips until in ends.
func serveProxy(ctx context.Context, in *json.Decoder, out *json.Encoder) error {
	var p *proxy
	for {
		var q proxyRequest
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a proxyAnswer
		var err error
		switch {
		case q.Delay > 0:
			p, err = newProxy(q.Delay)
		case q.Target != "":
			a.Address, err = p.open(ctx, q.Target)
		case q.Begin:
			p.trips.begin()
		default:
			a.Trips = p.trips.until(q.Until)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// open listens for connections to target, until the process ends.
func (p *proxy) open(ctx context.Context, target string) (address string, err error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		for {
			service, err := ln.Accept()
			if err != nil {
				return
			}
			go p.connect(ctx, service, target)
		}
	}()
	return ln.Addr().String(), nil
}

// connect serves one connection of a service. Making it takes no trip. Services keep their connections, so this
// does not show.
func (p *proxy) connect(ctx context.Context, service net.Conn, target string) {
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		_ = service.Close()
		return
	}
	l := &link{trips: &p.trips}
	go p.read(service, server, l.asking())
	go p.read(server, service, l.replying())
}

// chunk is what one read returned.
type chunk struct {
	data    []byte // nil for the end
	to      net.Conn
	due     time.Time
	number  int64
	deliver func(number int64)
}

const (
	chunkSize = 64 << 10
	// underWay is more than is read in a delay, so that the delay does not bound the bandwidth.
	underWay = 1 << 16
)

// read takes what one side of a connection sends, until its end.
func (p *proxy) read(from, to net.Conn, d direction) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := from.Read(buffer)
		c := chunk{to: to, due: time.Now().Add(p.delay), number: d.number(), deliver: d.deliver}
		if err != nil {
			p.chunks <- c
			return
		}
		c.data = slices.Clone(buffer[:n])
		p.chunks <- c
	}
}

// write passes on each chunk when it is due. All chunks have the same delay, so they are due in the order in which they
// were read, and one goroutine that waits for one after the other delays none of them further.
func (p *proxy) write(a *alarm) {
	for c := range p.chunks {
		if err := a.until(c.due); err != nil {
			panic(err) // ends the process, and with it the run
		}
		c.deliver(c.number)
		if c.data == nil {
			_ = c.to.Close()
		} else if _, err := c.to.Write(c.data); err != nil {
			_ = c.to.Close() // its reader tells the other side
		}
	}
}
