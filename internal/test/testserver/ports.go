package testserver

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below Linux's default ephemeral range (32768 up), for
// two reasons. No outgoing connection can take the port of a server that is down
// until its Restart; and a client that keeps dialling that port cannot, by
// simultaneous open, end up connected to itself.
const (
	firstPort = 15000
	lastPort  = 31999
)

// ports is a set of reserved TCP ports of 127.0.0.1.
type ports struct {
	nums []int
	held []io.Closer
}

// reservePorts finds n free ports. They stay reserved against every other user
// of this package on the machine until release. A foreign program may still take
// one, so starting a server is retried on a bind failure.
func reservePorts(n int) (*ports, error) {
	p := &ports{}
	for range 1000 {
		if len(p.nums) == n {
			return p, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		hold, err := claimPort(port)
		if err != nil {
			continue
		}
		if !bindable(port) {
			hold.Close()
			continue
		}
		p.nums = append(p.nums, port)
		p.held = append(p.held, hold)
	}
	p.release()
	return nil, errors.New("testserver: no free port on 127.0.0.1")
}

func (p *ports) release() {
	for _, h := range p.held {
		h.Close()
	}
	p.held = nil
}

func bindable(port int) bool {
	ln, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// retryOnBind runs start with fresh ports until it succeeds, fails for another
// reason than an occupied port, or has failed three times. On success the ports
// stay reserved, and the caller releases them when the server is gone for good.
func retryOnBind(n int, start func(nums []int) error) (*ports, error) {
	var last error
	for range 3 {
		p, err := reservePorts(n)
		if err != nil {
			return nil, err
		}
		if last = start(p.nums); last == nil {
			return p, nil
		}
		p.release()
		if !errors.Is(last, errBind) {
			return nil, last
		}
	}
	return nil, fmt.Errorf("testserver: three times in a row: %w", last)
}
