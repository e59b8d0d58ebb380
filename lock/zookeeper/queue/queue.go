package queue

import (
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
)

// Errors of a [Queue].
var (
	// ErrEmpty says that there is no element, or none that is not locked by
	// a consumer.
	ErrEmpty = errors.New("zookeeper: queue is empty")

	// ErrFull says that the queue has as many elements as [MaxLength]
	// allows. Nothing was offered.
	ErrFull = errors.New("zookeeper: queue is full")

	// ErrElementTooLarge says that an element is larger than [MaxElement]
	// allows. Nothing was offered.
	ErrElementTooLarge = errors.New("zookeeper: queue element is too large")

	// ErrBatchTooLarge says that the elements do not fit into one transaction.
	// Nothing was offered.
	ErrBatchTooLarge = errors.New("zookeeper: batch of queue elements is too large")
)

// InDoubtError says that the session ended, or the caller's context, before it
// was known whether a write was applied. As long as the session lives a lost
// reply is settled and does not show.
//
// It does not wrap idem.ErrUnavailable: simply doing it again may do it twice.
type InDoubtError struct {
	// Op is "offer", "take" or "ack".
	Op string
	// Elements are what it is about. Those of an offer may have been added, or
	// may yet be, or not. One of a take or an ack may have been removed by this
	// call, so that nobody else gets it; if not, somebody else does, or did.
	Elements []Element
	// Err is why.
	Err error
}

func (e *InDoubtError) Error() string {
	return fmt.Sprintf("zookeeper: queue: it is not known whether %s of %d was applied: %v", e.Op, len(e.Elements), e.Err)
}

func (e *InDoubtError) Unwrap() error { return e.Err }

// Element is what is in a queue.
type Element struct {
	ID   string // given by Offer; never used again
	Data []byte // as it was offered; nil and empty are the same
}

// Queue is a persistent first-in-first-out queue: a znode with one persistent
// sequential znode below it per element (the queue recipe of ZooKeeper's
// documentation), in the order in which the servers received them.
//
// There are two ways to take something out, which may be mixed:
//
//   - Poll, Remove and Take remove an element and return it: at most once. What
//     the caller has in hands when it crashes is lost.
//   - Receive and TryReceive lock an element by an ephemeral znode below it and
//     leave it in the queue until [Delivery.Ack]. When the consumer crashes, its
//     session ends and the element is delivered again, in its old place: at
//     least once. The others are delivered meanwhile, and until another process
//     has heard that the lock has gone, so that a redelivered element may come
//     after younger ones.
//
// An offer, a removal and an acknowledgement are each applied once or not at
// all, also when replies are lost (see once); where the session ends before that
// is settled, the error is an [*InDoubtError] that carries the elements.
//
// A queue of many elements is for buffering, not for storage: the servers keep
// it in memory, and each process lists it all whenever it has worked off, or
// found taken, what its last listing showed. Keep a Queue: it is that listing's
// home. A waiting process is woken by the first element that comes; of its
// waiting callers one tries to have it.
//
// The znode is a container, so that queues that are used no more go away. It can
// go only while it is empty, and the servers' numbers start again only then, so
// nothing is lost by it, and no order; an Offer or a waiting call makes it
// again. The servers keep one that was waited for and never offered to, unless
// their property znode.container.maxNeverUsedIntervalMs bounds that. Past 2³¹
// elements through a queue that never stood empty, order is not guaranteed.
//
// It is safe for concurrent use.
type Queue struct {
	c          *held.Client
	name       string // as given
	path       string // with the chroot
	maxLength  int
	maxElement int

	mu     sync.Mutex
	latest *listing
}

// Option is an option of [New].
type Option func(*Queue)

// MaxLength bounds how many elements a queue may hold: from 1 to 50,000,
// past which a client could not list them any more. It is looked at before an
// offer is sent, so that offers made at the same time may exceed it by what they
// offer. Default: 10,000.
func MaxLength(n int) Option { return func(q *Queue) { q.maxLength = n } }

// MaxElement bounds the bytes of an element: from 1 to 960,000, with which
// a transaction stays under the servers' default jute.maxbuffer of 1 MiB. Each
// delivery by Receive writes the element once more, to count it. Default:
// 512 KiB.
func MaxElement(bytes int) Option { return func(q *Queue) { q.maxElement = bytes } }

const (
	lengthLimit  = 50_000
	elementLimit = 960_000
	// batchLimit is the most that an offer may send: it leaves room for the pin
	// and the stamp, and for the session's own writes to share a Multi with.
	batchLimit = 1_000_000
)

// New returns the queue at an absolute path below the chroot. It need not
// exist. Options out of range make every call fail.
func New(in zookeeper.Root, path string, opts ...Option) *Queue {
	c, prefix := in.Base()
	q := &Queue{c: c, name: prefix + path, path: c.Chroot + prefix + path, maxLength: 10_000, maxElement: 512 << 10}
	for _, opt := range opts {
		if opt != nil {
			opt(q)
		}
	}
	return q
}

func (q *Queue) check() error {
	switch {
	case q.maxLength < 1 || q.maxLength > lengthLimit:
		return fmt.Errorf("zookeeper: queue: a length of %d is not from 1 to %d", q.maxLength, lengthLimit)
	case q.maxElement < 1 || q.maxElement > elementLimit:
		return fmt.Errorf("zookeeper: queue: an element size of %d is not from 1 to %d", q.maxElement, elementLimit)
	}
	return held.CheckPath("path", q.name, false)
}

// element is the role of a queue's znodes:
//
//	e-<ID>-<sequence number>
const element = "e"

func (q *Queue) pathOf(p line.Position) string { return q.path + "/" + p.Name }

// lockOf is the ephemeral znode below an element that locks it. As slot it also
// is a process's right to try and take the element, in whatever way.
func lockOf(path string) string { return path + "/lock" }

// size is how many bytes a create has on the wire.
func size(r *zk.CreateRequest) int {
	n := 9 + 4 + len(r.Path) + 4 + len(r.Data) + 4 + 4
	for _, acl := range r.Acl {
		n += 12 + len(acl.Scheme) + len(acl.ID)
	}
	return n
}
