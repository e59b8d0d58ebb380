package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

var _ driver.HistoryLocker = (*Locker)(nil)

// A lock domain names one history of an ensemble. Its fences are zxids, which grow as long as the
// ensemble keeps its data. If the servers start with older data, for example from a backup, the
// zxids begin again below those in the records. The UUID in the domain's znode is old data as well,
// so it says nothing.
//
// Nothing within the ensemble can tell. The proof is a zxid that somebody remembers outside of it,
// and then an own write with a lower one. A read proves nothing, because a follower may lag.

// learnDomain reads the ensemble's UUID. It gives a new ensemble a UUID first.
func (s *locks) learnDomain() error {
	id, err := s.agree(s.client.cfg.domainPath(), uuid.New())
	if err != nil {
		return err
	}
	return s.adoptDomain(id)
}

// adoptDomain gives all later leases the domain of this UUID.
func (s *locks) adoptDomain(id string) error {
	if id == "" {
		return fmt.Errorf("zookeeper: %s is empty, it should hold a UUID", s.client.cfg.domainPath())
	}
	domain := s.client.cfg.domainOf(id)
	s.table.SetDomain(domain)
	if before := s.client.domain.Swap(domain); before != nil && before != domain {
		s.log.Warn("zookeeper: the lock domain has changed, this is another ensemble, or one with older data", "before", before, "now", domain)
	}
	return nil
}

// followDomain learns the domains that other clients give the ensemble, until the session is over.
func (s *locks) followDomain() {
	path := s.client.cfg.domainPath()
	for s.session.Status.Err() == nil {
		watch := s.session.Watches.Of(path, session.OnExists, nil)
		<-watch.Armed()
		n, err := s.session.Reads.Decide(path, session.OfNode)
		if err == nil && n.Exists && s.client.cfg.domainOf(string(n.Data)) != s.table.Domain() {
			if err := s.adoptDomain(string(n.Data)); err != nil {
				s.log.Error("zookeeper: the lock domain stays as it is", "error", err)
			}
		}
		<-watch.Woken()
		if s.session.Status.Pause() != nil { // a watch that cannot be made is woken at once
			return
		}
	}
}

// followFormer gives the ensemble another domain if it is behind the writes of this client's
// former session.
func (s *locks) followFormer() error {
	former := s.client.former.Load()
	if former != nil && former.table.Domain() == s.table.Domain() {
		if _, err := s.renewDomain(former.table.Domain(), former.session.Applied()); err != nil {
			return err
		}
	}
	s.client.former.Store(s)
	return nil
}

// RenewDomain implements [driver.HistoryLocker]. The first client that notices replaces the UUID in
// the domain's znode. The error wraps [ErrNotPermitted] if this client may not.
func (l *Locker) RenewDomain(ctx context.Context, seen driver.Fence) (renewed bool, err error) {
	s, err := l.c.usable()
	if err != nil {
		return false, err
	}
	return session.Within(ctx, s.session.Status, func() (bool, error) { return s.renewDomain(seen.Domain, int64(seen.Token)) })
}

// Behind reports whether the ensemble lacks a fence of its domain that a lease had before the call.
// Then it came back with older data. It changes nothing.
func (l *Locker) Behind(ctx context.Context, seen driver.Fence) (bool, error) {
	s, err := l.c.usable()
	if err != nil {
		return false, err
	}
	now, err := s.session.Pulse.Present(ctx)
	return err == nil && seen.Domain == s.table.Domain() && uint64(now) < seen.Token, err
}

// renewDomain gives the ensemble another domain if its data is older than the zxid, which was seen
// before the call. If an answer is lost, the next read tells.
func (s *locks) renewDomain(domain string, seen int64) (renewed bool, err error) {
	path := s.client.cfg.domainPath()
	now, err := s.session.Pulse.FinalPresent()
	if err != nil {
		return false, err
	}
	for {
		n, err := s.session.Reads.Decide(path, session.OfNode)
		if err != nil {
			return false, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		id := string(n.Data)
		switch {
		case !n.Exists: // an operator has removed it
			if id, err = s.agree(path, uuid.New()); err != nil {
				return false, err
			}
			return true, s.adoptDomain(id)
		case s.client.cfg.domainOf(id) != domain:
			return true, s.adoptDomain(id)
		case now >= seen:
			return false, nil
		}
		next := uuid.New()
		r := s.session.Writes.Do(&zk.SetDataRequest{Path: path, Data: []byte(next), Version: n.Version})
		switch {
		case r.Outcome == session.Applied:
			s.log.Error("zookeeper: the ensemble came back with older data, and gets another lock domain", "domain", domain, "missing", seen, "present", now)
			return true, s.adoptDomain(next)
		case r.Outcome == session.Ended:
			return false, fmt.Errorf("%w: %w", driver.ErrUnavailable, r.Err)
		case r.Outcome == session.Refused && !r.RefusedBy(zk.ErrBadVersion) && !r.RefusedBy(zk.ErrNoNode):
			return false, fmt.Errorf("zookeeper: set %s: %w", path, r.Err)
		}
	}
}
