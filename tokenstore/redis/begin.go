package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Begin starts an attempt. [idem.Store] has the table. It takes one round trip. With
// [WithReplicas] it also waits for their acknowledgement, unless it only found a record.
// The error wraps idem.ErrStaleFence, idem.ErrNewerRecord, idem.ErrCorruptRecord,
// idem.ErrStoreLost or idem.ErrUnavailable. With ErrStaleFence the result has the record.
func (s *Store) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (res idem.BeginResult, err error) {
	if err := errors.Join(
		s.mayWrite("begin"),
		checkLength("begin", "domain", req.Fence.Domain, maxDomain),
		checkLength("begin", "route", req.Route, maxRoute),
	); err != nil {
		return res, err
	}
	if err := s.evicts.Refuse(ctx); err != nil {
		return res, unavailable("begin", err)
	}
	s.loss.Reread(ctx)
	rerun, rerunDomain := packRerun(req.RunAgainFrom)
	shard := redisserver.ShardOf(id)
	err = s.loss.Do(ctx, "begin", shard, func(expected string) (string, bool, error) {
		r, err := s.replicas.run(ctx, s.client, "begin", beginScript, shard, s.keys.keys(id),
			expected, id.String(), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
			req.Fence.Domain, req.Route, packFingerprint(req.Fingerprint), rerun, rerunDomain)
		if err == nil {
			res, err = beginResult(r, req)
		}
		return r.lost(err)
	})
	return res, err
}

// beginResult reads the answer of begin.lua.
func beginResult(r reply, req idem.BeginRequest) (res idem.BeginResult, err error) {
	if res.Record, err = r.decode("begin"); err != nil {
		return res, err
	}
	switch r.verdict {
	case verdictBegun:
		res.Begun = true
		if res.Replaced, err = replacedBy(r.record); err != nil {
			err = fmt.Errorf("tokenstore/redis: begin: %w", err)
		}
	case verdictStale:
		err = fmt.Errorf("tokenstore/redis: begin with fence %v after %v: %w",
			req.Fence, res.Record.Attempt.Fence, idem.ErrStaleFence)
	}
	return res, err
}

// Abort undoes a Begin, or makes the store refuse it if it arrives later. The error wraps
// idem.ErrNewerRecord, idem.ErrCorruptRecord or idem.ErrUnavailable.
func (s *Store) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	if err := errors.Join(s.mayWrite("abort"), checkLength("abort", "domain", req.Fence.Domain, maxDomain)); err != nil {
		return err
	}
	keep := req.KeyTTL
	if keep <= 0 {
		keep = idem.DefaultKeyTTL
	}
	rerun, rerunDomain := packRerun(req.RunAgainFrom)
	r, err := run(ctx, s.client, "abort", abortScript, s.keys.keys(id),
		id.String(), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
		req.Fence.Domain, millis(keep), rerun, rerunDomain)
	if err == nil && r.verdict == verdictUnreadable {
		_, err = r.decode("abort")
	}
	return err
}

// packRerun returns the attempt to start over from, and its domain. Both are empty
// without such an attempt.
func packRerun(a *idem.Attempt) (packed, domain string) {
	if a == nil {
		return "", ""
	}
	return packAttempt(*a), a.Fence.Domain
}
