package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Begin starts an attempt; see [idem.Store] for the table. It takes one round
// trip, and with [WithReplicas] the time until they have acknowledged; one that
// only finds a record takes no notice of them. The error wraps
// idem.ErrStaleFence, idem.ErrNewerRecord, idem.ErrCorruptRecord,
// idem.ErrStoreLost or idem.ErrUnavailable; with ErrStaleFence the result holds
// the record.
func (s *Store) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (idem.BeginResult, error) {
	if err := errors.Join(
		s.mayWrite("begin"),
		checkLength("begin", "domain", req.Fence.Domain, maxDomain),
		checkLength("begin", "route", req.Route, maxRoute),
	); err != nil {
		return idem.BeginResult{}, err
	}
	if err := s.evicts.refuse(ctx, "begin"); err != nil {
		return idem.BeginResult{}, err
	}
	s.inc.reread(ctx)
	rerun, rerunDomain := packRerun(req.Rerun)
	var res idem.BeginResult
	err := s.guarded(ctx, "begin", id, func(expected string) (reply, error) {
		r, err := s.runBegin(ctx, shardOf(id), s.keys.keys(id),
			expected, s.keys.member(id), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
			req.Fence.Domain, req.Route, packFingerprint(req.Fingerprint), rerun, rerunDomain)
		if err != nil || r.verdict == "lost" {
			return r, err
		}
		if res.Record, err = r.decode("begin"); err != nil {
			return r, err
		}
		if res.Begun = r.verdict == "begun"; res.Begun {
			if res.Replaced, err = replacedBy(r.record); err != nil {
				return r, fmt.Errorf("tokenstore/redis: begin: %w", err)
			}
		}
		if r.verdict == "stale" {
			return r, fmt.Errorf("tokenstore/redis: begin with fence %v after %v: %w",
				req.Fence, res.Record.Attempt.Fence, idem.ErrStaleFence)
		}
		return r, nil
	})
	return res, err
}

// Abort undoes a Begin, or refuses it should it still arrive. The error wraps
// idem.ErrNewerRecord, idem.ErrCorruptRecord or idem.ErrUnavailable.
func (s *Store) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	if err := errors.Join(s.mayWrite("abort"), checkLength("abort", "domain", req.Fence.Domain, maxDomain)); err != nil {
		return err
	}
	keep := req.KeyTTL
	if keep <= 0 {
		keep = idem.DefaultKeyTTL
	}
	rerun, rerunDomain := packRerun(req.Rerun)
	r, err := s.run(ctx, "abort", abortScript, s.keys.keys(id),
		s.keys.member(id), string([]byte{byte(req.Kind)}), packBid(req.Fence, req.Nonce),
		req.Fence.Domain, millis(keep), rerun, rerunDomain)
	if err == nil && r.verdict == unreadable {
		_, err = r.decode("abort")
	}
	return err
}

// packRerun returns the attempt to start over from, and its domain; nothing where
// there is none.
func packRerun(a *idem.Attempt) (packed, domain string) {
	if a == nil {
		return "", ""
	}
	return packAttempt(*a), a.Fence.Domain
}
