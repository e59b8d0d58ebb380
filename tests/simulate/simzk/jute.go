package simzk

import (
	"encoding/binary"
	"slices"
)

// Operations of the protocol (org.apache.zookeeper.ZooDefs.OpCode).
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opGetACL          = 6
	opGetChildren     = 8
	opPing            = 11
	opGetChildren2    = 12
	opCheck           = 13
	opMulti           = 14
	opCreateContainer = 19
	opAuth            = 100
	opSetWatches      = 101
	opCreateSession   = -10
	opCloseSession    = -11
	opError           = -1
)

// Codes of errors (org.apache.zookeeper.KeeperException.Code).
const (
	codeOK               int32 = 0
	codeInconsistency    int32 = -2
	codeUnimplemented    int32 = -6
	codeBadArguments     int32 = -8
	codeNoNode           int32 = -101
	codeBadVersion       int32 = -103
	codeNoChildren       int32 = -108 // of ephemeral znodes
	codeNodeExists       int32 = -110
	codeNotEmpty         int32 = -111
	codeSessionExpired   int32 = -112
	codeSessionMoved     int32 = -118
	eventCreated         int32 = 1
	eventDeleted         int32 = 2
	eventDataChanged     int32 = 3
	eventChildrenChanged int32 = 4
)

// Xids of messages that answer no request.
const (
	xidEvent = -1
	xidPing  = -2
)

// decoder reads a message. After a message that is too short it reads zeros, and bad is
// true.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad = true
		return make([]byte, max(n, 0)%16)
	}
	part := d.b[:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) int32() int32 {
	if part := d.take(4); !d.bad {
		return int32(binary.BigEndian.Uint32(part))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if part := d.take(8); !d.bad {
		return int64(binary.BigEndian.Uint64(part))
	}
	return 0
}

func (d *decoder) bool() bool {
	part := d.take(1)
	return !d.bad && part[0] != 0
}

func (d *decoder) bytes() []byte {
	n := d.int32()
	if n < 0 {
		return nil
	}
	return slices.Clone(d.take(int(n)))
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) strings() (list []string) {
	for range max(d.int32(), 0) {
		if d.bad {
			break
		}
		list = append(list, d.string())
	}
	return list
}

// encoder is a message.
type encoder []byte

func (e *encoder) int32(v int32) { *e = binary.BigEndian.AppendUint32(*e, uint32(v)) }
func (e *encoder) int64(v int64) { *e = binary.BigEndian.AppendUint64(*e, uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

func (e *encoder) bytes(b []byte) {
	if b == nil {
		e.int32(-1)
		return
	}
	e.int32(int32(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) string(s string) {
	e.int32(int32(len(s)))
	*e = append(*e, s...)
}

// acl is one entry of an ACL.
type acl struct {
	perms      int32
	scheme, id string
}

func (d *decoder) acls() (list []acl) {
	for range max(d.int32(), 0) {
		if d.bad {
			break
		}
		list = append(list, acl{d.int32(), d.string(), d.string()})
	}
	return list
}

func (e *encoder) acls(list []acl) {
	e.int32(int32(len(list)))
	for _, a := range list {
		e.int32(a.perms)
		e.string(a.scheme)
		e.string(a.id)
	}
}

// op is an operation that changes znodes, as a client asks for it, or as the leader has
// decided it.
type op struct {
	code    int32
	path    string
	data    []byte
	acl     []acl
	flags   int32 // of a create
	version int32

	owner     int64 // of an ephemeral znode that is created
	container bool
	creates   int32 // of the parent, after a create
	failed    int32 // code of the error, for opError
}

// Flags of a create.
const (
	flagEphemeral = 1
	flagSequence  = 2
	flagContainer = 4
)

// op reads the body of an operation.
func (d *decoder) op(code int32) op {
	o := op{code: code, path: d.string()}
	switch code {
	case opCreate, opCreateContainer:
		o.data, o.acl, o.flags = d.bytes(), d.acls(), d.int32()
	case opSetData:
		o.data, o.version = d.bytes(), d.int32()
	case opDelete, opCheck:
		o.version = d.int32()
	default:
		d.bad = true
	}
	return o
}

// multi reads the operations of a Multi.
func (d *decoder) multi() (ops []op) {
	for !d.bad {
		code, done := d.int32(), d.bool()
		d.int32()
		if done {
			break
		}
		ops = append(ops, d.op(code))
	}
	return ops
}
