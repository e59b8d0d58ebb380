package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// Errors of a [Queue].
var (
	// ErrEmpty means that the queue has no element, or that consumers have locked all of them.
	ErrEmpty = errors.New("zookeeper: queue is empty")

	// ErrFull means that the queue has as many elements as [WithMaxLength] allows. Nothing was
	// offered.
	ErrFull = errors.New("zookeeper: queue is full")

	// ErrElementTooLarge means that an element has more than 512 KiB. Nothing was offered.
	ErrElementTooLarge = errors.New("zookeeper: queue element is too large")

	// ErrBatchTooLarge means that the elements do not fit into one transaction. Nothing was
	// offered.
	ErrBatchTooLarge = errors.New("zookeeper: batch of queue elements is too large")
)

// InDoubtError means that the session or the caller's context ended before the outcome of a
// write was known. While the session lives, the queue settles a lost reply and returns no
// error.
//
// It does not wrap driver.ErrUnavailable, because a caller might do the work twice on a retry.
type InDoubtError struct {
	// Op is "offer", "take" or "ack".
	Op string
	// Elements are those of the write. An offer may have added them, or may still add them. A
	// take or an ack may have removed its element, and then no other consumer gets it.
	// Otherwise another consumer does.
	Elements []Element
	// Err is the reason.
	Err error
}

func (e *InDoubtError) Error() string {
	return fmt.Sprintf("zookeeper: queue: it is not known whether %s of %d was applied: %v", e.Op, len(e.Elements), e.Err)
}

func (e *InDoubtError) Unwrap() error { return e.Err }

// Element is one entry of a queue.
type Element struct {
	ID   string // given by Offer, never used again
	Data []byte // as offered, nil and empty are the same
}

// Queue is a persistent first-in-first-out queue. It is a znode with one persistent sequential
// child for each element, as in the queue recipe of ZooKeeper's documentation. The elements are in
// the order in which the servers received them.
//
// A consumer can take elements in two ways. Both may be used on one queue.
//
//   - Poll, Remove and Take remove an element and return it. They deliver it at most once. If
//     the caller crashes, the elements in its hands are lost.
//   - Receive and TryReceive lock an element by an ephemeral znode below it, and leave it in the
//     queue until [Delivery.Ack]. They deliver it at least once. If the consumer crashes, its
//     session ends and the element is delivered again. It keeps its place, but other processes
//     deliver younger elements until they hear of the end of its lock.
//
// Every offer, removal and acknowledgement is applied once or not at all, even if replies are
// lost. If the session ends before the outcome is known, the error is an [*InDoubtError] with the
// elements.
//
// Use a queue of many elements as a buffer, not as storage. The servers keep it in memory. A
// process lists all of it whenever it has worked off its last list, or found much of that gone.
// Keep a Queue in use, because it has the list. The first new element wakes a waiting process,
// and one of its waiting callers tries to take it.
//
// The znode is a container, so the servers remove an unused queue. They remove it only while it is
// empty, and only then its numbers start again. So no element and no order is lost. An Offer or a
// waiting call makes the znode again. The servers keep a container that never had an element,
// unless their property znode.container.maxNeverUsedIntervalMs limits its time. After 2³¹ elements
// through a queue without an empty moment, the order is not guaranteed.
//
// A Queue is safe for concurrent use.
//
// It has more than fifteen methods. Thirteen are what users of a queue expect, and a list of the
// session (elements.go) does most of the work.
type Queue struct {
	c         *held.Client
	name      string // as given
	path      string // with the chroot
	maxLength int

	mu     sync.Mutex
	latest *elements // of the session in use last
}

// Option is an option of [New]. A nil option is ignored.
type Option func(*Queue)

// WithMaxLength bounds the elements of a queue, from 1 to 50,000. A client can list no more. The
// queue checks the length before it sends an offer, so offers made at the same time may exceed
// it by their elements. The default is 10,000. A lower bound tells producers earlier that the consumers
// have stopped.
func WithMaxLength(n int) Option { return func(q *Queue) { q.maxLength = n } }

const (
	lengthLimit = 50_000
	// elementLimit bounds the bytes of an element. So a transaction stays under the servers' default
	// jute.maxbuffer of 1 MiB. Each delivery by Receive writes the element once more, to count it.
	elementLimit = 512 << 10
	// batchLimit bounds the bytes of an offer. It leaves room for the pin, the stamp, and the
	// session's own writes in the same transaction.
	batchLimit = 1_000_000
)

// New returns the queue at an absolute path below the chroot. It need not exist. The error is for wrong
// wiring, which is a path that is not valid, an option out of range, or no client. New asks no server.
func New(in zookeeper.Space, path string, opts ...Option) (*Queue, error) {
	c, name, full, err := held.Locate(in, path)
	if err != nil {
		return nil, err
	}
	q := &Queue{c: c, name: name, path: full, maxLength: 10_000}
	for _, opt := range opts {
		if opt != nil {
			opt(q)
		}
	}
	if q.maxLength < 1 || q.maxLength > lengthLimit {
		return nil, fmt.Errorf("zookeeper: queue %s: a length of %d is not from 1 to %d", name, q.maxLength, lengthLimit)
	}
	return q, nil
}

// MustNew is [New] for known-good wiring. It panics where New returns an error.
func MustNew(in zookeeper.Space, path string, opts ...Option) *Queue {
	return held.Must(New(in, path, opts...))
}

// fresh returns a session. Its deciding reads show every write acknowledged to any client
// before the call.
func (q *Queue) fresh(ctx context.Context) (*held.Table, error) {
	t, err := q.c.Table()
	if err != nil {
		return nil, err
	}
	return t, t.Session.Pulse.Barrier(ctx)
}

// elements returns the elements as a session knows them.
func (q *Queue) elements(t *held.Table) *elements {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.t != t {
		q.latest = newElements(t, q.path)
	}
	return q.latest
}

// element is the role of a queue's znodes. Their names are
//
//	e-<ID>-<sequence number>
const element = "e"
