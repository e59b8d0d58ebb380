package simstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Client is the store as one process sees it. It is safe for concurrent use.
type Client struct {
	s    *Server
	call func(ctx context.Context, serve func()) error
	now  func() time.Duration // the lease clock

	mu   sync.Mutex
	seen observation // the last one of the server's clock
}

// observation is a server's time, and what the lease clock said when the answer was there. So an estimate from it is never ahead,
// however long the call was on its way.
type observation struct {
	server time.Time // zero before the first answer
	lease  time.Duration
}

var _ driver.LockingStore = (*Client)(nil)

// Client returns a client that makes its calls by call. See simnet.Caller.Do.
func (s *Server) Client(call func(ctx context.Context, serve func()) error) *Client {
	start := time.Now()
	return &Client{s: s, call: call, now: func() time.Duration { return time.Since(start) }}
}

// WithClock sets the lease clock of the process.
func (c *Client) WithClock(now func() time.Duration) *Client {
	c.now = now
	return c
}

// exchange is one call and its answer. serve may run twice, and after the caller has gone.
// So each run has an answer of its own, and the first one counts.
func exchange[T any](ctx context.Context, c *Client, serve func() (T, error)) (zero T, err error) {
	type answer struct {
		v   T
		err error
		now time.Time
	}
	first, asked := make(chan answer, 1), c.now()
	err = c.call(ctx, func() {
		v, err := serve()
		select {
		case first <- answer{v, err, c.s.Clock()}:
		default:
		}
	})
	if err != nil {
		return zero, fmt.Errorf("simstore: %w", err)
	}
	a := <-first
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked >= c.seen.lease {
		c.seen = observation{a.now, c.now()}
	}
	return a.v, a.err
}

// change is a call that changes the record of a key.
func change[T any](ctx context.Context, c *Client, id driver.KeyID, begins bool, f func(*state) (T, error)) (T, error) {
	return exchange(ctx, c, func() (v T, err error) {
		answered := false
		err = c.s.change(id, begins, func(m *state) error {
			got, err := f(m)
			if !answered { // a later call is for the rebuilt records
				v, answered = got, true
			}
			return err
		})
		return v, err
	})
}

// read is a call that changes nothing.
func read[T any](ctx context.Context, c *Client, f func(*state) (T, error)) (T, error) {
	return exchange(ctx, c, func() (v T, err error) {
		err = c.s.read(func(m *state) (err error) {
			v, err = f(m)
			return err
		})
		return v, err
	})
}

// Every call at the server has a context of its own, since it does not end with the caller.
var there = context.Background()

// Get implements driver.Store.
func (c *Client) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	return read(ctx, c, func(m *state) (driver.Record, error) {
		rec, err := m.Get(there, id)
		if err == nil && rec.State == driver.StateNone && c.s.lost {
			err = fmt.Errorf("simstore: %w", driver.ErrStoreLost)
		}
		return rec, err
	})
}

// Issue implements driver.Store.
func (c *Client) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	return change(ctx, c, id, true, func(m *state) (driver.Record, error) { return m.Issue(there, id, ttl) })
}

// Begin implements driver.Store.
func (c *Client) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	return change(ctx, c, id, true, func(m *state) (driver.BeginResult, error) { return m.Begin(there, id, req) })
}

// Settle implements driver.Store.
func (c *Client) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	return change(ctx, c, id, false, func(m *state) (driver.SettleResult, error) { return m.Settle(there, id, st) })
}

// Abort implements driver.Store.
func (c *Client) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	_, err := change(ctx, c, id, false, func(m *state) (struct{}, error) { return struct{}{}, m.Abort(there, id, req) })
	return err
}

// ListOpen implements driver.Store. A call may outlive its caller, and q.Skip may not.
func (c *Client) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	if skip := q.Skip; skip != nil {
		var mu sync.Mutex
		over := false
		q.Skip = func(place driver.OpenCursor) bool {
			mu.Lock()
			defer mu.Unlock()
			return !over && skip(place)
		}
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			over = true
		}()
	}
	return read(ctx, c, func(m *state) (driver.OpenPage, error) { return m.ListOpen(there, q) })
}

// RetireDomain implements driver.Store.
func (c *Client) RetireDomain(ctx context.Context, domain string, d driver.Decision) error {
	_, err := read(ctx, c, func(m *state) (struct{}, error) { return struct{}{}, m.RetireDomain(there, domain, d) })
	return err
}

// DomainRetired implements driver.Store.
func (c *Client) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return read(ctx, c, func(m *state) (bool, error) { return m.DomainRetired(there, domain) })
}

// NoteFence implements driver.Store.
func (c *Client) NoteFence(ctx context.Context, f driver.Fence) error {
	_, err := read(ctx, c, func(m *state) (struct{}, error) {
		if c.s.full != nil && c.s.full(driver.KeyID{}) {
			return struct{}{}, errFull
		}
		return struct{}{}, m.NoteFence(there, f)
	})
	return err
}

// HighestFence implements driver.Store.
func (c *Client) HighestFence(ctx context.Context, domain string) (uint64, error) {
	return read(ctx, c, func(m *state) (uint64, error) { return m.HighestFence(there, domain) })
}

// Ping implements driver.Store.
func (c *Client) Ping(ctx context.Context) error {
	_, err := read(ctx, c, func(m *state) (struct{}, error) { return struct{}{}, nil })
	return err
}

// Visibility implements driver.Store.
func (c *Client) Visibility() driver.Visibility { return driver.VisibilityShared }
