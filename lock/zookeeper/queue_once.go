package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
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
func (s *locks) once(ctx context.Context, ops ...any) session.Result {
	sl, err := s.claimStamp(ctx)
	if err != nil {
		return session.Result{Outcome: session.Unsent, Err: err}
	}
	defer s.free(sl)
	stamp := strconv.FormatUint(s.client.tries.Add(1), 10)
	all := append(slices.Clone(ops), &zk.SetDataRequest{Path: sl.path, Data: []byte(stamp), Version: -1})
	for {
		if ctx.Err() != nil {
			return session.Result{Outcome: session.Unsent, Err: context.Cause(ctx)}
		}
		if why := s.Err(); why != nil {
			return session.Result{Outcome: session.Unsent, Err: why}
		}
		r := s.Write(all...)
		switch {
		case r.Outcome == session.Applied:
			r.Created = r.Created[:len(ops)]
			return r
		case r.RefusedAt(len(ops), zk.ErrNoNode):
			if err := s.makeStamp(sl.path); err != nil {
				return session.Result{Outcome: session.Unsent, Err: err}
			}
			continue
		case r.Outcome == session.Refused:
			return r
		case r.Outcome == session.Ended:
			// Known for a znode that ends with the session, but not for this.
			return session.Result{Outcome: session.Unknown, Err: r.Err}
		case r.Outcome == session.Unknown:
			n, err := s.Decide(sl.path, session.OfNode)
			if err != nil {
				return session.Result{Outcome: session.Unknown, Err: s.Err()}
			}
			if string(n.Data) == stamp {
				return session.Result{Outcome: session.Applied}
			}
		}
		if err := s.Settled(); err != nil {
			return session.Result{Outcome: session.Unsent, Err: err}
		}
		if err := s.Pause(); err != nil {
			return session.Result{Outcome: session.Unsent, Err: err}
		}
	}
}

// claimStamp takes a stamp, and waits for one where all are in use.
func (s *locks) claimStamp(ctx context.Context) (*slot, error) {
	for {
		if err := s.AwaitUp(ctx); err != nil {
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
		if err := s.Await(ctx, busy.freed); err != nil {
			return nil, err
		}
	}
}

// stampPath is where stamp no. i is: beside the session's member.
func (s *locks) stampPath(i int) string { return s.Member() + "-" + strconv.Itoa(i) }

// makeStamp creates the znode. Doing it twice does no harm.
func (s *locks) makeStamp(path string) error {
	for {
		r := s.Write(&zk.CreateRequest{Path: path, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral})
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
			return nil
		case r.Outcome == session.Ended, r.Outcome == session.Refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
		if err := s.Settled(); err != nil {
			return err
		}
		if err := s.Pause(); err != nil {
			return err
		}
	}
}

// see makes a write once, for a caller that may leave when ctx ends: then its
// outcome is unknown, and a goroutine sees it through. after is called with the
// true one in any case.
func (s *locks) see(ctx context.Context, after func(session.Result), ops ...any) session.Result {
	if ctx.Err() != nil {
		r := session.Result{Outcome: session.Unsent, Err: context.Cause(ctx)}
		after(r)
		return r
	}
	answer := make(chan session.Result, 1)
	s.client.keeper.Background.Add()
	run := func() {
		defer s.client.keeper.Background.Done()
		r := s.once(ctx, ops...)
		after(r)
		answer <- r
	}
	if !s.Go(run) {
		s.client.keeper.Background.Done()
		r := session.Result{Outcome: session.Unsent, Err: s.Err()}
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
		return session.Result{Outcome: session.Unknown, Err: context.Cause(ctx)}
	}
}
