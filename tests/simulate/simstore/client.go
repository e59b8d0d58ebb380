package simstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Client is the store as one process sees it. It is safe for concurrent use.
type Client struct {
	s    *Server
	call func(ctx context.Context, serve func()) error
}

var _ idem.Store = (*Client)(nil)

// Client returns a client that makes its calls by call. See simnet.Caller.Do.
func (s *Server) Client(call func(ctx context.Context, serve func()) error) *Client {
	return &Client{s, call}
}

// exchange is one call and its answer. serve may run twice, and after the caller has gone.
// So each run has an answer of its own, and the first one counts.
func exchange[T any](ctx context.Context, c *Client, serve func() (T, error)) (zero T, err error) {
	type answer struct {
		v   T
		err error
	}
	first := make(chan answer, 1)
	err = c.call(ctx, func() {
		v, err := serve()
		select {
		case first <- answer{v, err}:
		default:
		}
	})
	if err != nil {
		return zero, fmt.Errorf("simstore: %w", err)
	}
	a := <-first
	return a.v, a.err
}

// change is a call that changes the record of a key.
func change[T any](ctx context.Context, c *Client, id idem.KeyID, begins bool, f func(*memorystore.Store) (T, error)) (T, error) {
	return exchange(ctx, c, func() (v T, err error) {
		answered := false
		err = c.s.change(id, begins, func(m *memorystore.Store) error {
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
func read[T any](ctx context.Context, c *Client, f func(*memorystore.Store) (T, error)) (T, error) {
	return exchange(ctx, c, func() (v T, err error) {
		err = c.s.read(func(m *memorystore.Store) (err error) {
			v, err = f(m)
			return err
		})
		return v, err
	})
}

// Every call at the server has a context of its own, since it does not end with the caller.
var there = context.Background()

// Get implements idem.Store.
func (c *Client) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	return read(ctx, c, func(m *memorystore.Store) (idem.Record, error) {
		rec, err := m.Get(there, id)
		if err == nil && rec.State == idem.StateNone && c.s.lost {
			err = fmt.Errorf("simstore: %w", idem.ErrStoreLost)
		}
		return rec, err
	})
}

// Issue implements idem.Store.
func (c *Client) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	return change(ctx, c, id, true, func(m *memorystore.Store) (idem.Record, error) { return m.Issue(there, id, ttl) })
}

// Begin implements idem.Store.
func (c *Client) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (idem.BeginResult, error) {
	return change(ctx, c, id, true, func(m *memorystore.Store) (idem.BeginResult, error) { return m.Begin(there, id, req) })
}

// Settle implements idem.Store.
func (c *Client) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (idem.SettleResult, error) {
	return change(ctx, c, id, false, func(m *memorystore.Store) (idem.SettleResult, error) { return m.Settle(there, id, st) })
}

// Abort implements idem.Store.
func (c *Client) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	_, err := change(ctx, c, id, false, func(m *memorystore.Store) (struct{}, error) { return struct{}{}, m.Abort(there, id, req) })
	return err
}

// ListOpen implements idem.Store. A call may outlive its caller, and q.Skip may not.
func (c *Client) ListOpen(ctx context.Context, q idem.OpenQuery) (idem.OpenPage, error) {
	if skip := q.Skip; skip != nil {
		var mu sync.Mutex
		over := false
		q.Skip = func(place idem.OpenCursor) bool {
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
	return read(ctx, c, func(m *memorystore.Store) (idem.OpenPage, error) { return m.ListOpen(there, q) })
}

// RetireDomain implements idem.Store.
func (c *Client) RetireDomain(ctx context.Context, domain string, d idem.Decision) error {
	_, err := read(ctx, c, func(m *memorystore.Store) (struct{}, error) { return struct{}{}, m.RetireDomain(there, domain, d) })
	return err
}

// DomainRetired implements idem.Store.
func (c *Client) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return read(ctx, c, func(m *memorystore.Store) (bool, error) { return m.DomainRetired(there, domain) })
}

// NoteFence implements idem.Store.
func (c *Client) NoteFence(ctx context.Context, f idem.Fence) error {
	_, err := read(ctx, c, func(m *memorystore.Store) (struct{}, error) {
		if c.s.full != nil && c.s.full(idem.KeyID{}) {
			return struct{}{}, errFull
		}
		return struct{}{}, m.NoteFence(there, f)
	})
	return err
}

// HighestFence implements idem.Store.
func (c *Client) HighestFence(ctx context.Context, domain string) (uint64, error) {
	return read(ctx, c, func(m *memorystore.Store) (uint64, error) { return m.HighestFence(there, domain) })
}

// Ping implements idem.Store.
func (c *Client) Ping(ctx context.Context) error {
	_, err := read(ctx, c, func(m *memorystore.Store) (struct{}, error) { return struct{}{}, nil })
	return err
}

// Visibility implements idem.Store.
func (c *Client) Visibility() idem.Visibility { return idem.VisibilityShared }
