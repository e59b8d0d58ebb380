package zookeeper

import (
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// outcome is what is known of a pinned write.
type outcome uint8

const (
	// applied: all of it, acknowledged.
	applied outcome = iota
	// refused: none of it; result.op is the first operation that failed.
	refused
	// unsent: none of it; it never left this process.
	unsent
	// unknown: all of it or nothing, and it may even happen later, until a
	// barrier has been acknowledged.
	unknown
	// ended: the session is over, and with it everything that it made or
	// would have made that is ephemeral.
	ended
)

// result is what a pinned write came to.
type result struct {
	outcome outcome
	// zxid is the transaction's when applied: the czxid of every znode it
	// created, and the mzxid of every znode it set.
	zxid int64
	// created has the path of each znode created when applied, by the index of
	// its operation, and "" for other operations.
	created []string
	// op is the index of the culprit when refused: among the operations of the
	// Multi as interpret returns it, 0 where the caller has one only. It is −1
	// when the pin itself was refused.
	op  int
	err error
}

// refusedBy reports whether a write was refused because of its own operation,
// with this error.
func (r result) refusedBy(err error) bool { return r.refusedAt(0, err) }

// refusedAt is refusedBy for one of several operations.
func (r result) refusedAt(op int, err error) bool {
	return r.outcome == refused && r.op == op && errors.Is(r.err, err)
}

// interpret reads the answer to Multi(pin, n operations).
//
// Checked against ZooKeeper 3.8: in a failed batch the first operation with an
// error is the culprit, whatever its code. Those before it carry no error, those
// after it "runtime inconsistency". The library returns results and an error
// together then. Only what is certain counts as refused or unsent, all else is
// unknown.
//
// The pin is judged more strictly than the other operations, because its refusal
// ends the session: only for the codes in definite.
func interpret(n int, answer []zk.MultiResponse, err error) result {
	switch {
	case errors.Is(err, zk.ErrNoServer):
		return result{outcome: unsent, err: err} // was still in the send queue
	case errors.Is(err, zk.ErrSessionExpired):
		return result{outcome: ended, err: fmt.Errorf("%w: %w", errExpired, err)}
	case len(answer) != n+1:
		if err == nil {
			err = errors.New("zookeeper: incomplete answer to a write")
		}
		return result{outcome: unknown, err: err}
	}
	for i, op := range answer {
		switch {
		case op.Error == nil:
			continue
		case i == 0 && errors.Is(op.Error, zk.ErrNoNode):
			return result{outcome: ended, err: fmt.Errorf("%w: %w", errNoMember, op.Error)}
		case i == 0 && !definite(op.Error), unlisted(op.Error) == codeRuntimeInconsistency:
			return result{outcome: unknown, err: op.Error}
		default:
			return result{outcome: refused, op: i - 1, err: op.Error}
		}
	}
	if err != nil || answer[0].Stat == nil {
		if err == nil {
			err = errors.New("zookeeper: answer to a write without its stat")
		}
		return result{outcome: unknown, err: err}
	}
	r := result{outcome: applied, zxid: answer[0].Stat.Mzxid, created: make([]string, n)}
	for i, op := range answer[1:] {
		r.created[i] = op.String
	}
	return r
}

// definite lists the errors by which a server says that it did nothing.
func definite(err error) bool {
	for _, e := range []error{
		zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrBadVersion,
		zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrNoChildrenForEphemerals, zk.ErrBadArguments,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Codes of the servers (org.apache.zookeeper.KeeperException.Code) that the client
// library has no error for.
const (
	codeRuntimeInconsistency = -2 // of an operation that was not tried
	codeAPIError             = -100
	codeQuotaExceeded        = -125
)

// codeError is a refusal with a code that the client library has no error for.
type codeError struct {
	path string
	code int
}

func (e *codeError) Error() string {
	why := ""
	if e.code == codeQuotaExceeded {
		why = ": a quota is exceeded"
	}
	return fmt.Sprintf("zookeeper: the servers refused to write %s with code %d%s", e.path, e.code, why)
}

// answered says that a request outside of a Multi was answered by a refusal, so that
// nothing was applied and trying again at once does not help.
func answered(err error) bool { return refusal(err) || errors.As(err, new(*codeError)) }

// unlisted returns the code of a server's error that the client library has no
// error for, and 0 for any other error. The library keeps the code in the text only.
func unlisted(err error) (code int) {
	if err == nil {
		return 0
	}
	if _, scan := fmt.Sscanf(err.Error(), "unknown error: %d", &code); scan != nil {
		return 0
	}
	return code
}

// refusalOf says what the servers refused: whose ACL it was, or with which code.
// Any other error is returned as it is.
func refusalOf(op any, err error) error {
	if code := unlisted(err); code < codeAPIError {
		return &codeError{pathOf(op), code}
	}
	return notPermitted(op, err)
}

// pathOf is the path that an operation of a Multi is about.
func pathOf(op any) string {
	switch op := op.(type) {
	case *zk.CreateRequest:
		return op.Path
	case *zk.SetDataRequest:
		return op.Path
	case *zk.DeleteRequest:
		return op.Path
	case *zk.CheckVersionRequest:
		return op.Path
	}
	return ""
}
