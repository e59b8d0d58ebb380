package simzk

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// znode is one znode.
type znode struct {
	data                []byte
	acl                 []acl
	czxid, mzxid, pzxid int64
	ctime, mtime        int64 // ms
	version             int32
	creates             int32 // of children, ever
	owner               int64 // the session of an ephemeral znode
	container           bool
	children            map[string]bool
}

// stat writes the znode's Stat.
func (z *znode) stat(e *encoder) {
	for _, v := range []int64{z.czxid, z.mzxid, z.ctime, z.mtime} {
		e.int64(v)
	}
	e.int32(z.version)
	e.int32(2*z.creates - int32(len(z.children))) // the creates and the deletes
	e.int32(0)
	e.int64(z.owner)
	e.int32(int32(len(z.data)))
	e.int32(int32(len(z.children)))
	e.int64(z.pzxid)
}

// tree is the znodes of one server.
type tree map[string]*znode

func newTree() tree {
	t := tree{"/": {children: map[string]bool{}, creates: -1}}
	for _, path := range []string{"/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
		t.apply(&txn{}, &op{code: opCreate, path: path, creates: t[parentOf(path)].creates + 1})
	}
	return t
}

// clone is a copy that shares no znode.
func (t tree) clone() tree {
	c := make(tree, len(t))
	for path, z := range t {
		copied := *z
		copied.children = maps.Clone(z.children)
		c[path] = &copied
	}
	return c
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

func nameOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func validPath(path string) bool {
	return strings.HasPrefix(path, "/") && (path == "/" || !strings.HasSuffix(path, "/")) && !strings.Contains(path, "//")
}

// ephemerals are the znodes of a session.
func (t tree) ephemerals(session int64) (paths []string) {
	for path, z := range t {
		if z.owner == session {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// change is what an operation did, for watches.
type change struct {
	kind int32
	path string
}

// apply carries out an operation that the leader has decided.
func (t tree) apply(tx *txn, o *op) []change {
	parent := parentOf(o.path)
	switch o.code {
	case opCreate:
		t[o.path] = &znode{
			data: o.data, acl: o.acl, czxid: tx.zxid, mzxid: tx.zxid, pzxid: tx.zxid, ctime: tx.time, mtime: tx.time,
			owner: o.owner, container: o.container, children: map[string]bool{},
		}
		p := t[parent]
		p.children[nameOf(o.path)], p.creates, p.pzxid = true, o.creates, tx.zxid
		return []change{{eventCreated, o.path}}
	case opDelete:
		delete(t, o.path)
		p := t[parent]
		delete(p.children, nameOf(o.path))
		p.pzxid = tx.zxid
		return []change{{eventDeleted, o.path}}
	case opSetData:
		z := t[o.path]
		z.data, z.version, z.mzxid, z.mtime = o.data, o.version, tx.zxid, tx.time
		return []change{{eventDataChanged, o.path}}
	}
	return nil
}

// judge decides what an operation of a session does to the tree. It returns the operation
// with everything decided, or the code of an error.
func (t tree) judge(session int64, o op) (op, int32) {
	if !validPath(o.path) {
		return o, codeBadArguments
	}
	z := t[o.path]
	switch o.code {
	case opCreate, opCreateContainer:
		return t.judgeCreate(session, o)
	case opDelete:
		switch {
		case o.path == "/":
			return o, codeBadArguments
		case z == nil:
			return o, codeNoNode
		case o.version != -1 && o.version != z.version:
			return o, codeBadVersion
		case len(z.children) > 0:
			return o, codeNotEmpty
		}
	case opSetData:
		switch {
		case z == nil:
			return o, codeNoNode
		case o.version != -1 && o.version != z.version:
			return o, codeBadVersion
		}
		o.version = z.version + 1
	case opCheck:
		switch {
		case z == nil:
			return o, codeNoNode
		case o.version != -1 && o.version != z.version:
			return o, codeBadVersion
		}
	}
	return o, codeOK
}

func (t tree) judgeCreate(session int64, o op) (op, int32) {
	p := t[parentOf(o.path)]
	switch {
	case o.path == "/":
		return o, codeNodeExists
	case p == nil:
		return o, codeNoNode
	}
	if o.flags&flagSequence != 0 && o.flags&flagContainer == 0 {
		o.path += fmt.Sprintf("%010d", p.creates)
	}
	switch {
	case t[o.path] != nil:
		return o, codeNodeExists
	case p.owner != 0:
		return o, codeNoChildren
	}
	if o.flags&flagContainer == 0 && o.flags&flagEphemeral != 0 {
		o.owner = session
	}
	o.container = o.code == opCreateContainer
	o.code, o.creates = opCreate, p.creates+1
	return o, codeOK
}

// names are the children of a znode, in order.
func (z *znode) names() []string { return slices.Sorted(maps.Keys(z.children)) }
