package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Settle closes an attempt or marks it unknown, and repairs a record that is
// missing or older than the attempt; see [idem.Store]. It takes one round trip,
// and does not ask whether the store lost records. What a person decided is kept
// beside the record too, see [Store.Decisions]. The error wraps
// idem.ErrNewerRecord, idem.ErrCorruptRecord or idem.ErrUnavailable.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (idem.SettleResult, error) {
	if err := s.mayWrite("settle"); err != nil {
		return idem.SettleResult{}, err
	}
	args, err := s.settleArgs(id, st)
	if err != nil {
		return idem.SettleResult{}, err
	}
	keys := s.keys.keys(id)
	if audited(st.Decision.By) {
		keys, args = append(keys, s.keys.decisions(shardOf(id))), append(args, keptDecisions)
	}
	r, err := s.run(ctx, "settle", settleScript, keys, args...)
	if err != nil {
		return idem.SettleResult{}, err
	}
	rec, err := r.decode("settle")
	if err != nil {
		return idem.SettleResult{}, err
	}
	repaired := r.verdict == "repaired"
	res := idem.SettleResult{Settled: repaired || r.verdict == "settled", Repaired: repaired, Record: rec}
	// The response does not travel back to whom it came from.
	if res.Settled && (rec.State == idem.StateCompleted || rec.State == idem.StateUnknown) {
		res.Record.Response = st.Response
	}
	return res, nil
}

// settleArgs are the ARGV of settle.lua.
func (s *Store) settleArgs(id idem.KeyID, st idem.Settlement) ([]any, error) {
	if err := errors.Join(
		checkLength("settle", "domain", st.Attempt.Fence.Domain, maxDomain),
		checkLength("settle", "decision's author", st.Decision.By, maxAuthor),
		checkLength("settle", "decision's reason", st.Decision.Reason, maxReason),
	); err != nil {
		return nil, err
	}
	switch st.State {
	case idem.StateCompleted, idem.StateReleased, idem.StateUnknown:
	default:
		return nil, fmt.Errorf("tokenstore/redis: settle: state %v", st.State)
	}
	response, place, err := packResponse(st)
	if err != nil {
		return nil, err
	}
	keyTTL := st.KeyTTL
	if keyTTL <= 0 {
		keyTTL = idem.DefaultKeyTTL
	}
	if st.State == idem.StateCompleted {
		keyTTL = max(keyTTL, st.ResultTTL)
	}
	args := []any{
		s.keys.member(id), packAttempt(st.Attempt), st.Attempt.Fence.Domain, string(st.ID[:]),
		string([]byte{byte(st.State)}), response, string([]byte{place}),
		millis(st.ResultTTL), millis(keyTTL), st.Decision.By, st.Decision.Reason,
	}
	re := st.Restore
	if re == nil {
		return append(args, "", "", "", "", "", "", ""), nil
	}
	replaced := re.Replaced.Attempt
	if err := errors.Join(
		checkLength("settle", "route", re.Route, maxRoute),
		checkLength("settle", "domain", replaced.Fence.Domain, maxDomain),
	); err != nil {
		return nil, err
	}
	trust, state := "untrusted", ""
	if st.Trusted {
		trust = "trusted"
	}
	if re.Replaced != (idem.Replaced{}) {
		state = string([]byte{byte(re.Replaced.State)}) + packAttempt(replaced)
	}
	return append(args, trust, string([]byte{byte(re.Kind)}), re.Route, packFingerprint(re.Fingerprint), packTime(re.Started),
		state, replaced.Fence.Domain), nil
}

// packResponse encodes the response and chooses its place.
func packResponse(st idem.Settlement) (packed []byte, place byte, err error) {
	if st.Response == nil || st.State == idem.StateReleased {
		return nil, placeNowhere, nil
	}
	packed, err = st.Response.AppendBinary(nil)
	switch {
	case err != nil:
		return nil, placeNowhere, fmt.Errorf("tokenstore/redis: settle: %w", err)
	case len(packed) <= inlineLimit:
		return packed, placeInline, nil
	}
	return packed, placeApart, nil
}
