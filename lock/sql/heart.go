package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// heart renews locks over one connection, which it keeps. So handlers that fill the pool do not
// delay it, also not those that wait in a transaction for their own renewal. Renewals that wait at the same moment share
// a request.
type heart struct {
	db       *sql.DB
	names    names
	ttl      int64 // µs
	patience time.Duration
	spawn    func(func(context.Context)) bool

	unreplicated func() uint64

	conn *sql.Conn // of the goroutine that runs

	mu      sync.Mutex
	waiting []*renewal
	running bool
}

// renewal is a call of extend.
type renewal struct {
	locks   []leasing.Lock
	answers []error
	done    chan struct{} // closed when the answers are there
}

// extend has the answers of leasing.Service.Extend. Without locks it keeps the connection alive.
func (h *heart) extend(ctx context.Context, locks []leasing.Lock) []error {
	r := &renewal{locks: locks, answers: make([]error, len(locks)), done: make(chan struct{})}
	h.mu.Lock()
	h.waiting = append(h.waiting, r)
	first := !h.running
	h.running = true
	h.mu.Unlock()
	if first && !h.spawn(h.run) {
		return all(len(locks), leasing.ErrClosed)
	}
	select {
	case <-r.done:
		return r.answers
	case <-ctx.Done():
		return all(len(locks), context.Cause(ctx))
	}
}

func all(n int, err error) []error {
	list := make([]error, n)
	for i := range list {
		list[i] = err
	}
	return list
}

// run sends what waits, until nothing does.
func (h *heart) run(ctx context.Context) {
	for {
		h.mu.Lock()
		n, locks := 0, []leasing.Lock(nil)
		for n < len(h.waiting) && (n == 0 || len(locks)+len(h.waiting[n].locks) <= leasing.MaxBatch) {
			locks = append(locks, h.waiting[n].locks...)
			n++
		}
		batch := h.waiting[:n]
		h.waiting = h.waiting[n:]
		h.running = n > 0
		h.mu.Unlock()
		if n == 0 {
			return
		}
		answers := h.send(ctx, locks)
		for _, r := range batch {
			copy(r.answers, answers)
			answers = answers[len(r.locks):]
			close(r.done)
		}
	}
}

// send renews locks.
func (h *heart) send(ctx context.Context, locks []leasing.Lock) []error {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	var err error
	for range maxTries {
		if h.conn == nil {
			if h.conn, err = h.db.Conn(ctx); err != nil {
				h.conn = nil
				break
			}
		}
		before := h.unreplicated()
		var answers []error
		if len(locks) > 0 {
			answers, err = h.names.kind.extend(ctx, h.conn, h.names, locks, h.ttl)
		} else {
			err = h.conn.PingContext(ctx)
		}
		if err == nil && h.unreplicated() != before {
			return all(len(locks), errUnreplicated)
		}
		if err == nil {
			return answers
		}
		if h.names.kind.Fault(err) == sqldialect.Conflict {
			continue
		}
		// It may be broken, or lead to a primary that has become a standby.
		_ = h.conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // closes it
		h.close()
		break
	}
	return all(len(locks), err)
}

// close gives the connection back to its pool. Nothing runs then.
func (h *heart) close() {
	if h.conn != nil {
		_ = h.conn.Close()
		h.conn = nil
	}
}
