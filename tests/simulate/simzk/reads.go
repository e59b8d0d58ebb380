package simzk

// ask answers a read from what the server has applied, and leaves its watch.
func (en *entry) ask() {
	s, d := en.c.s, &en.body
	en.zxid = s.zxid
	switch en.code {
	case opPing:
		en.xid = xidPing
		return
	case opAuth:
		return
	case opSetWatches:
		en.c.setWatches(d)
		return
	case opExists, opGetData, opGetACL, opGetChildren, opGetChildren2:
	default:
		en.failed = codeUnimplemented
		return
	}
	path := d.string()
	wants := en.code != opGetACL && d.bool()
	z := s.tree[path]
	switch {
	case d.bad || !validPath(path):
		en.failed = codeBadArguments
		return
	case z == nil:
		en.failed = codeNoNode
	}
	if wants && (z != nil || en.code == opExists) {
		s.watches[watch{en.c, path, en.code == opGetChildren || en.code == opGetChildren2}] = true
	}
	if z == nil {
		return
	}
	switch en.code {
	case opGetData:
		en.answer.bytes(z.data)
	case opGetACL:
		en.answer.acls(z.acl)
	case opGetChildren, opGetChildren2:
		names := z.names()
		en.answer.int32(int32(len(names)))
		for _, name := range names {
			en.answer.string(name)
		}
	}
	if en.code != opGetChildren {
		z.stat(&en.answer)
	}
}

// setWatches leaves watches again after a reconnect. A change since the zxid fires at once.
func (c *conn) setWatches(d *decoder) {
	since := d.int64()
	data, exists, children := d.strings(), d.strings(), d.strings()
	again := func(path string, kids bool, event int32) {
		if event != 0 {
			c.event(event, path)
		} else {
			c.s.watches[watch{c, path, kids}] = true
		}
	}
	for _, path := range data {
		switch z := c.s.tree[path]; {
		case z == nil:
			again(path, false, eventDeleted)
		case z.mzxid > since:
			again(path, false, eventDataChanged)
		default:
			again(path, false, 0)
		}
	}
	for _, path := range exists {
		if c.s.tree[path] != nil {
			again(path, false, eventCreated)
		} else {
			again(path, false, 0)
		}
	}
	for _, path := range children {
		switch z := c.s.tree[path]; {
		case z == nil:
			again(path, true, eventDeleted)
		case z.pzxid > since:
			again(path, true, eventChildrenChanged)
		default:
			again(path, true, 0)
		}
	}
}
