package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
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
	delay time.Duration
	trips trips
}

// serveProxy opens ways and counts trips until in ends.
func serveProxy(ctx context.Context, in *json.Decoder, out *json.Encoder) error {
	p := &proxy{}
	for {
		var q proxyRequest
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a proxyAnswer
		switch {
		case q.Delay > 0:
			p.delay = q.Delay
		case q.Target != "":
			var err error
			if a.Address, err = p.open(ctx, q.Target); err != nil {
				a.Error = err.Error()
			}
		case q.Begin:
			p.trips.begin()
		default:
			a.Trips = p.trips.until(q.Until)
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
	defer func() { _ = service.Close() }()
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	l := &link{proxy: p, ended: make(chan struct{}, 2)}
	go l.carry(service, server, l.ask, l.asked)
	go l.carry(server, service, l.reply, l.replied)
	<-l.ended // one side has gone, and the other has what it sent before
}
