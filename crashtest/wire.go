package crashtest

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// Conn wraps a connection of a client that sends a request and waits for its answer. name gets what the client writes, and
// returns the name of a point, or "" for what is none, such as a handshake. The first bytes of an answer count as
// the answer. It needs the connection below no other layer, such as TLS.
func (e *Env) Conn(c net.Conn, name func(written []byte) string) net.Conn {
	if e == nil {
		return c
	}
	return &wire{Conn: c, env: e, name: name}
}

type wire struct {
	net.Conn
	env  *Env
	name func([]byte) string

	mu       sync.Mutex
	open     []Passage // sent, and not answered
	deadline time.Time // of reads
	giveUp   context.CancelFunc
}

func (w *wire) Write(p []byte) (int, error) {
	if name := w.name(p); name != "" {
		passage := w.env.Before(name)
		if passage.Cut() {
			_ = w.Conn.Close()
			return 0, errConnection
		}
		w.mu.Lock()
		w.open = append(w.open, passage)
		w.mu.Unlock()
	}
	return w.Conn.Write(p)
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for _, passage := range open {
		if err := w.after(passage); err != nil {
			return 0, err
		}
	}
	return n, err
}

// after returns the error of a read whose bytes the client must not get.
func (w *wire) after(passage Passage) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.mu.Lock()
	w.giveUp = cancel
	w.mu.Unlock()
	w.heed()
	lost := passage.After(ctx, nil)
	w.mu.Lock()
	w.giveUp = nil
	w.mu.Unlock()
	if !lost {
		return nil
	}
	_ = w.Conn.Close() // the bytes are gone
	if ctx.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	return errConnection
}

// heed ends a late answer at the deadline of the client.
func (w *wire) heed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.giveUp != nil && !w.deadline.IsZero() {
		time.AfterFunc(time.Until(w.deadline), w.giveUp)
	}
}

func (w *wire) setDeadline(t time.Time) {
	w.mu.Lock()
	w.deadline = t
	w.mu.Unlock()
	w.heed()
}

func (w *wire) SetDeadline(t time.Time) error {
	w.setDeadline(t)
	return w.Conn.SetDeadline(t)
}

func (w *wire) SetReadDeadline(t time.Time) error {
	w.setDeadline(t)
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Close() error {
	w.setDeadline(time.Now())
	return w.Conn.Close()
}
