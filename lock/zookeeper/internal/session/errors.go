package session

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"
)

// Why a session is over, or serves no callers.
var (
	ErrExpired  = errors.New("zookeeper: session expired")
	ErrNoMember = errors.New("zookeeper: the session's member znode is gone")
	ErrGivenUp  = errors.New("zookeeper: session was given up, nothing was acknowledged for too long")
	ErrRewound  = errors.New("zookeeper: the ensemble came back with older data")
	ErrClosed   = errors.New("zookeeper: client is closed")

	errNotReady     = errors.New("not ready")
	errAbandoned    = errors.New("zookeeper: client was abandoned")
	errNotConnected = errors.New("zookeeper: not connected")
	errNotConfirmed = errors.New("zookeeper: connection not confirmed yet")
	errNoQuorum     = errors.New("zookeeper: no answer from the quorum")
)

// ErrNotPermitted is exported and explained by package zookeeper.
var ErrNotPermitted = errors.New("zookeeper: not permitted")

// errUnknownToServers refuses an ACL for "auth", the identities of the client, because the
// servers know no identity of it.
var errUnknownToServers = errors.New("zookeeper: the servers have not authenticated this client")

// ErrNoParent refuses to create a znode without a parent.
var ErrNoParent = errors.New("a znode above it is missing")

// Codes of the servers (org.apache.zookeeper.KeeperException.Code) without an error in the
// client library.
const (
	codeRuntimeInconsistency = -2 // of an untried operation
	codeAPIError             = -100
	codeQuotaExceeded        = -125
)

// codeError is a refusal with a code unknown to the client library.
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

// Refusal reports whether the servers refused a request for good. Another try does not
// help.
func Refusal(err error) bool {
	return errors.Is(err, ErrNotPermitted) || errors.Is(err, errUnknownToServers) ||
		errors.Is(err, zk.ErrNoChildrenForEphemerals) || errors.Is(err, zk.ErrBadArguments)
}

// Answered reports whether the servers refused a request outside of a Multi. Nothing
// was applied, and another try at once does not help.
func Answered(err error) bool {
	return Refusal(err) || errors.As(err, new(*codeError))
}

// Definite reports whether an error of a server means that the server did nothing.
func Definite(err error) bool {
	return slices.ContainsFunc([]error{
		zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrBadVersion,
		zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrNoChildrenForEphemerals, zk.ErrBadArguments,
	}, func(definite error) bool { return errors.Is(err, definite) })
}

// unlisted returns the server's code from an error unknown to the client library, and 0
// for any other error. The library keeps the code in the text only.
func unlisted(err error) (code int) {
	if err != nil {
		_, _ = fmt.Sscanf(err.Error(), "unknown error: %d", &code)
	}
	return code
}

// refusalOf names the znode whose ACL had an operation refused, or the server's code.
// It returns any other error as it is. The ACL of the parent decides about creating and
// deleting.
func refusalOf(op any, err error) error {
	if code := unlisted(err); code < codeAPIError {
		return &codeError{pathOf(op), code}
	}
	znode := pathOf(op)
	switch op.(type) {
	case *zk.CreateRequest, *zk.DeleteRequest:
		if errors.Is(err, zk.ErrInvalidACL) && !errors.Is(err, errUnknownToServers) {
			return fmt.Errorf("%w, or do not know a scheme of Config.ACL: create %s: %w", errUnknownToServers, znode, err)
		}
		znode = path.Dir(znode)
	case *zk.SetDataRequest:
	default:
		return err
	}
	return notPermittedAt(znode, err)
}

// notPermittedAt names the znode whose ACL had a request refused. It returns any other
// error as it is.
func notPermittedAt(znode string, err error) error {
	if !errors.Is(err, zk.ErrNoAuth) || errors.Is(err, ErrNotPermitted) {
		return err
	}
	return fmt.Errorf("%w by the ACL of %s, which is not for this client: %w", ErrNotPermitted, znode, err)
}

// pathOf is the path of an operation of a Multi.
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
