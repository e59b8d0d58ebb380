package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// place is a znode in a line. No other znode ever has its name, so that it may
// be deleted without looking whose it is.
type place struct {
	line     *line
	prefix   string // <role>-<unique>-
	data     []byte
	position      // once made
	founder  bool // the parent was made for it
	// guarded by session.mu:
	head  bool   // its turn came when no place was before it
	alone bool   // no place was seen behind it then
	heir  *Lease // waits right behind it, or has inherited the lock
}

// is says whether q is this place.
func (p *place) is(q position) bool { return q.name == p.name }

// uniqueLen is the length of what makes a name unique: 96 random bits, in
// hexadecimal. A create whose reply was lost is recognised by it.
const uniqueLen = 24

// enqueue takes a place at the end of a line. The lease that it returns stands
// for the place only: whose turn it is has to be found out.
func (s *locks) enqueue(ctx context.Context, ln *line, role string, data []byte) (*Lease, error) {
	var unique [uniqueLen / 2]byte
	_, _ = rand.Read(unique[:]) // never fails
	p := &place{line: ln, prefix: role + "-" + hex.EncodeToString(unique[:]) + "-", data: data}
	sl, _, _, err := s.claim(ln.path + "/" + p.prefix)
	if err != nil {
		return nil, err
	}
	return s.attempt(ctx, &attempt{slot: sl, place: p, create: p.create, first: p.request(s)})
}

// owned is the data of a place: whose it is.
func (c *Client) owned(name string) []byte {
	o := c.owner
	o.Nonce = name
	o.Try = strconv.FormatUint(c.tries.Add(1), 10)
	return o.encode()
}

// create makes the znode, until it is known what became of it.
func (p *place) create(a *attempt) (czxid int64, err error) {
	s := a.s
	var r session.Result
	for range maxTries {
		if a.early == nil && a.gone() {
			return 0, idem.ErrUnavailable // nobody reads this
		}
		r = a.send(p.request(s))
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, p.named(a, r.Created[0])
		case r.RefusedBy(zk.ErrNoNode):
			if err := s.ensureLine(p.line); err != nil {
				return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
			}
			p.founder = true
			continue
		case r.Outcome != session.Unknown:
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, r.Err)
		}
		n, err := p.find(a)
		if err != nil {
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
		}
		if n.Exists {
			return n.Czxid, nil
		}
	}
	return 0, fmt.Errorf("%w: acquire: no certain answer %d times, the last: %w", idem.ErrUnavailable, maxTries, r.Err)
}

// request is the create; the servers add the number.
func (p *place) request(s *locks) *zk.CreateRequest {
	return &zk.CreateRequest{Path: p.line.path + "/" + p.prefix, Data: p.data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral | zk.FlagSequence}
}

// lastElement is a path's part behind its last slash.
func lastElement(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// named takes note of the name that the servers made up.
func (p *place) named(a *attempt, path string) error {
	name := lastElement(path)
	pos, ok := parsePosition(name)
	if !ok || !strings.HasPrefix(name, p.prefix) {
		return fmt.Errorf("zookeeper: created %s, which is not %s and a number", path, p.prefix)
	}
	p.position = pos
	a.s.rename(a.slot, path)
	return nil
}

// find looks for the znode where the reply to its create was lost.
func (p *place) find(a *attempt) (session.Decided, error) {
	s := a.s
	line, err := s.Decide(p.line.path, session.OfChildren)
	if err != nil {
		return session.Decided{}, err
	}
	for _, name := range line.Names {
		if strings.HasPrefix(name, p.prefix) {
			n, err := s.Decide(p.line.path+"/"+name, session.OfNode)
			if err != nil || !n.Exists {
				return session.Decided{}, err
			}
			return n, p.named(a, p.line.path+"/"+name)
		}
	}
	return session.Decided{}, nil
}

// remove deletes the znode: with its parent, where this place was the reason to
// make that, nobody has been seen behind it, and its line has served nobody
// else; a line that is used again keeps its parent.
func (p *place) remove(l *Lease) error {
	s := l.s
	s.mu.Lock()
	last, deletion := p.last(), l.deletion()
	s.mu.Unlock()
	if last {
		r := s.Write(&zk.DeleteRequest{Path: l.slot.path, Version: -1}, &zk.DeleteRequest{Path: p.line.path, Version: -1})
		if r.Outcome == session.Applied {
			return nil
		}
	}
	return l.removeOn(s.Write(deletion))
}

// last says whether the parent is to go with the place. Needs session.mu.
func (p *place) last() bool { return p.founder && p.alone && p.line.uses.Load() <= 1 }
