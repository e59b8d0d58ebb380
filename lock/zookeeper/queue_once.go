package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// stamps is how many writes of a session that must be applied exactly once are
// under way at a time. Each has an ephemeral znode of the session's, made when it
// is first needed.
const stamps = 32

// once makes a pinned write whose effect outlives the session, exactly once.
//
// What a lost reply said cannot be read off the effect itself: an element that
// is not there may never have been offered, or been offered and consumed; one
// that has gone may have been removed by anybody. So the write also sets a stamp,
// a znode that nobody else writes to, to a value never used before. After a
// barrier the stamp tells.
//
// The outcome is applied (result.created is nil when it took a second look),
// refused, unsent, which includes that ctx ended before it was sent, or unknown:
// the session is over. ctx does not interrupt what has been sent.
func (s *session) once(ctx context.Context, ops ...any) result {
	sl, err := s.claimStamp(ctx)
	if err != nil {
		return result{outcome: unsent, err: err}
	}
	defer s.free(sl)
	stamp := strconv.FormatUint(s.client.tries.Add(1), 10)
	all := append(slices.Clone(ops), &zk.SetDataRequest{Path: sl.path, Data: []byte(stamp), Version: -1})
	for {
		if ctx.Err() != nil {
			return result{outcome: unsent, err: context.Cause(ctx)}
		}
		if why := s.reason(); why != nil {
			return result{outcome: unsent, err: why}
		}
		r := s.w.do(all...)
		switch {
		case r.outcome == applied:
			r.created = r.created[:len(ops)]
			return r
		case r.refusedAt(len(ops), zk.ErrNoNode):
			if err := s.makeStamp(sl.path); err != nil {
				return result{outcome: unsent, err: err}
			}
			continue
		case r.outcome == refused:
			return r
		case r.outcome == ended:
			// Known for a znode that ends with the session, but not for this.
			return result{outcome: unknown, err: r.err}
		case r.outcome == unknown:
			n, err := s.decide(sl.path, ofNode)
			if err != nil {
				return result{outcome: unknown, err: s.reason()}
			}
			if string(n.data) == stamp {
				return result{outcome: applied}
			}
		}
		if err := s.settled(); err != nil {
			return result{outcome: unsent, err: err}
		}
		if err := s.pause(); err != nil {
			return result{outcome: unsent, err: err}
		}
	}
}

// claimStamp takes a stamp, and waits for one where all are in use.
func (s *session) claimStamp(ctx context.Context) (*slot, error) {
	for {
		if err := s.awaitUp(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
		first := rand.N(stamps)
		var busy *slot
		for i := range stamps {
			sl, other, _, err := s.claim(s.stampPath((first + i) % stamps))
			if sl != nil || err != nil {
				return sl, err
			}
			busy = other
		}
		if err := s.await(ctx, busy.freed); err != nil {
			return nil, err
		}
	}
}

// stampPath is where stamp no. i is: beside the session's member.
func (s *session) stampPath(i int) string { return s.w.pin.Path + "-" + strconv.Itoa(i) }

// makeStamp creates the znode. Doing it twice does no harm.
func (s *session) makeStamp(path string) error {
	for {
		r := s.w.do(&zk.CreateRequest{Path: path, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral})
		switch {
		case r.outcome == applied, r.refusedBy(zk.ErrNodeExists):
			return nil
		case r.outcome == ended, r.outcome == refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.err)
		}
		if err := s.settled(); err != nil {
			return err
		}
		if err := s.pause(); err != nil {
			return err
		}
	}
}

// see makes a write once, for a caller that may leave when ctx ends: then its
// outcome is unknown, and a goroutine sees it through. after is called with the
// true one in any case.
func (s *session) see(ctx context.Context, after func(result), ops ...any) result {
	if ctx.Err() != nil {
		r := result{outcome: unsent, err: context.Cause(ctx)}
		after(r)
		return r
	}
	answer := make(chan result, 1)
	s.client.background.add()
	run := func() {
		defer s.client.background.done()
		r := s.once(ctx, ops...)
		after(r)
		answer <- r
	}
	if !s.start(run) {
		s.client.background.done()
		r := result{outcome: unsent, err: s.reason()}
		after(r)
		return r
	}
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
	}
	select {
	case r := <-answer:
		return r
	default:
		return result{outcome: unknown, err: context.Cause(ctx)}
	}
}
