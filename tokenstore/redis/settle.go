package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// inlineLimit is the longest packed response in bytes that the record itself holds. A
// longer one has a key of its own, which goes when the result expires. The small record
// then remembers the key.
const inlineLimit = 1024

// Settle closes an attempt or marks it unknown. It repairs a record that is missing or
// older than the attempt. [idem.Store] has the table. It takes one round trip and does not
// ask whether the store lost records. [Store.Decisions] keeps the decisions of people. The
// error wraps idem.ErrNewerRecord, idem.ErrCorruptRecord or idem.ErrUnavailable.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (res idem.SettleResult, err error) {
	if err := s.mayWrite("settle"); err != nil {
		return res, err
	}
	args, err := settleArgs(id, st)
	if err != nil {
		return res, err
	}
	keys := s.keys.keys(id)
	if audited(st.Decision.By) {
		keys, args = append(keys, s.keys.decisions(redisserver.ShardOf(id))), append(args, keptDecisions)
	}
	r, err := run(ctx, s.client, "settle", settleScript, keys, args...)
	if err != nil {
		return res, err
	}
	if res.Record, err = r.decode("settle"); err != nil {
		return res, err
	}
	res.Repaired = r.verdict == verdictRepaired
	res.Settled = res.Repaired || r.verdict == verdictSettled
	// The response does not travel back.
	if res.Settled && (res.Record.State == idem.StateCompleted || res.Record.State == idem.StateUnknown) {
		res.Record.Response = st.Response
	}
	return res, nil
}

// settleArgs are the first 18 ARGV of settle.lua.
func settleArgs(id idem.KeyID, st idem.Settlement) ([]any, error) {
	var re idem.Repair
	if st.Repair != nil {
		re = *st.Repair
	}
	if err := errors.Join(
		checkLength("settle", "domain", st.Attempt.Fence.Domain, maxDomain),
		checkLength("settle", "decision's author", st.Decision.By, maxAuthor),
		checkLength("settle", "decision's reason", st.Decision.Reason, maxReason),
		checkLength("settle", "route", re.Route, maxRoute),
		checkLength("settle", "domain", re.Replaced.Attempt.Fence.Domain, maxDomain),
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
	repair, replaced := "", ""
	switch {
	case st.Repair != nil && st.LeaseTrusted:
		repair = "trusted"
	case st.Repair != nil:
		repair = "untrusted"
	}
	if re.Replaced != (idem.Replaced{}) {
		replaced = string([]byte{byte(re.Replaced.State)}) + packAttempt(re.Replaced.Attempt)
	}
	return []any{
		id.String(), packAttempt(st.Attempt), st.Attempt.Fence.Domain, string(st.ID[:]),
		string([]byte{byte(st.State)}), response, string([]byte{place}),
		millis(st.ResultTTL), millis(keyTTL), st.Decision.By, st.Decision.Reason,
		repair, string([]byte{byte(re.Kind)}), re.Route, packFingerprint(re.Fingerprint), packTime(re.Started),
		replaced, re.Replaced.Attempt.Fence.Domain,
	}, nil
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
