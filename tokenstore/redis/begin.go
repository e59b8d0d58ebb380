package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Begin starts an attempt. [driver.Store] has the table. It takes one round trip. With
// [WithReplicas] it also waits for their acknowledgement, unless it only found a record.
// The error wraps driver.ErrStaleFence, driver.ErrNewerRecord, driver.ErrCorruptRecord,
// driver.ErrStoreLost or driver.ErrUnavailable, the last one together with driver.ErrNoWrites if the
// server takes no writes. With ErrStaleFence the result has the record.
func (s *Store) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (res driver.BeginResult, err error) {
	if err := s.mayWrite("begin", req.Fence.Domain, req.Route); err != nil {
		return res, err
	}
	if err := s.evicts.Refuse(ctx); err != nil {
		return res, fmt.Errorf("tokenstore/redis: begin: %w: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites, err)
	}
	s.loss.Reread(ctx)
	rerun, rerunDomain := packRerun(req.RunAgainFrom)
	keys := s.keys.of(id)
	r, err := s.compared(ctx, "begin", id, func(expected string, now reading) (reply, error) {
		call := redisscript.Call{Keys: keys.list(), Args: []string{
			expected, keys.member(), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
			packDomain(req.Fence.Domain), req.Route, packFingerprint(req.Fingerprint), rerun, rerunDomain,
			packTTLs(req.ResultTTL, req.KeyTTL), now.packed(),
		}}
		return s.runBegin(ctx, id, beginScript, call)
	})
	if err != nil {
		return res, err
	}
	res.Record = r.record
	switch r.verdict {
	case verdictBegun:
		res.Begun = true
		if res.Replaced, err = replacedBy(r.packed); err != nil {
			err = fmt.Errorf("tokenstore/redis: begin: %w", err)
		}
	case verdictStale:
		err = fmt.Errorf("tokenstore/redis: begin with fence %v after %v: %w", req.Fence, r.record.Attempt.Fence, driver.ErrStaleFence)
	}
	return res, err
}

// runBegin runs a script that begins, and waits for replicas if the store does.
func (s *Store) runBegin(ctx context.Context, id driver.KeyID, script *goredis.Script, call redisscript.Call) (reply, error) {
	if s.replicas == nil {
		return s.run(ctx, "begin", id, script, call)
	}
	r, err := s.replicas.begin(ctx, redisserver.ShardOf(id), script, call)
	return s.withBody(ctx, "begin", id, r, err)
}

// Abort undoes a Begin, or makes the store refuse it if it arrives later. The error wraps
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	if err := s.mayWrite("abort", req.Fence.Domain); err != nil {
		return err
	}
	rerun, rerunDomain := packRerun(req.RunAgainFrom)
	keys := s.keys.of(id)
	_, err := s.run(ctx, "abort", id, abortScript, redisscript.Call{Keys: keys.list(), Args: []string{
		keys.member(), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
		packDomain(req.Fence.Domain), millis(keyTTL(req.KeyTTL)), rerun, rerunDomain,
	}})
	return err
}

// keyTTL is d, or the default.
func keyTTL(d time.Duration) time.Duration { return cmp.Or(max(d, 0), idem.DefaultKeyTTL) }

// packRerun returns the attempt to start over from, and its domain. Both are empty
// without such an attempt.
func packRerun(a *driver.Attempt) (packed, domain string) {
	if a == nil {
		return "", ""
	}
	return packAttempt(*a), packDomain(a.Fence.Domain)
}
