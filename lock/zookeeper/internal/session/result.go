package session

import (
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// Outcome is the knowledge about a pinned write.
type Outcome uint8

const (
	// Unknown means all or nothing. The write may even be applied later, until a
	// barrier has been acknowledged. It is the zero value, because it claims nothing.
	Unknown Outcome = iota
	// Applied means that all of the write was applied and acknowledged.
	Applied
	// Refused means nothing was applied. Result.Op is the first operation to fail.
	Refused
	// Unsent means nothing was applied. The write never left this process.
	Unsent
	// Ended means the session is over, and with it every ephemeral znode of the write.
	Ended
)

// Result is the result of a pinned write.
type Result struct {
	Outcome Outcome
	// Zxid is the transaction's, when applied. It is the czxid of every znode created
	// by the write, and the mzxid of every znode set by it.
	Zxid int64
	// Created has the path of each znode created, when applied, by the index of its
	// operation, and "" for other operations.
	Created []string
	// Op is the index of the culprit when refused, or -1 for the pin itself.
	Op  int
	Err error

	version int32 // of the member znode, when applied
}

// RefusedBy reports whether a write was refused because of its first operation, with
// this error.
func (r Result) RefusedBy(err error) bool { return r.RefusedAt(0, err) }

// RefusedAt is RefusedBy for one of several operations.
func (r Result) RefusedAt(op int, err error) bool {
	return r.Outcome == Refused && r.Op == op && errors.Is(r.Err, err)
}

// slice is the result of n operations of an applied Multi, from one on.
func (r Result) slice(from, n int) Result {
	if r.Outcome == Applied {
		r.Created = r.Created[from:][:n]
	}
	return r
}

// interpret reads the answer to Multi(pin, n operations).
//
// In a failed batch of ZooKeeper 3.8 the first operation with an error is the culprit,
// with any code. The operations before it carry no error, those after it carry "runtime
// inconsistency". The library then returns results and an error together. Only certain
// answers count as refused or unsent. All others are unknown.
//
// The pin is judged more strictly than the other operations, because its refusal ends
// the session. Only the codes in Definite count for it.
func interpret(n int, answer []zk.MultiResponse, err error) Result {
	switch {
	case errors.Is(err, zk.ErrNoServer):
		return Result{Outcome: Unsent, Err: err} // it was still in the send queue
	case errors.Is(err, zk.ErrSessionExpired):
		return Result{Outcome: Ended, Err: fmt.Errorf("%w: %w", ErrExpired, err)}
	case len(answer) != n+1:
		if err == nil {
			err = errors.New("zookeeper: incomplete answer to a write")
		}
		return Result{Outcome: Unknown, Err: err}
	}
	for i, op := range answer {
		switch {
		case op.Error == nil:
			continue
		case i == 0 && errors.Is(op.Error, zk.ErrNoNode):
			return Result{Outcome: Ended, Err: fmt.Errorf("%w: %w", ErrNoMember, op.Error)}
		case i == 0 && !Definite(op.Error), unlisted(op.Error) == codeRuntimeInconsistency:
			return Result{Outcome: Unknown, Err: op.Error}
		default:
			return Result{Outcome: Refused, Op: i - 1, Err: op.Error}
		}
	}
	if err != nil || answer[0].Stat == nil {
		if err == nil {
			err = errors.New("zookeeper: answer to a write without its stat")
		}
		return Result{Outcome: Unknown, Err: err}
	}
	r := Result{Outcome: Applied, Zxid: answer[0].Stat.Mzxid, Created: make([]string, n), version: answer[0].Stat.Version}
	for i, op := range answer[1:] {
		r.Created[i] = op.String
	}
	return r
}
