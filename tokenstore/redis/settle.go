package redisstore

import (
	"context"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// inlineLimit is the longest packed response in bytes that the record itself holds. A
// longer one has a key of its own, which goes when the result expires. The small record
// then remembers the key.
const inlineLimit = 1024

// Settle closes an attempt or marks it unknown. It repairs a record that is missing or
// older than the attempt. [driver.Store] has the table. It takes one round trip and does not
// ask whether the store lost records. [Store.Decisions] keeps the decisions of people. The
// error wraps driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (res driver.SettleResult, err error) {
	keys := s.keys.of(id)
	call := redisscript.Call{Keys: keys.list()}
	if call.Args, err = s.settleArgs(keys.member(), &st, s.clocks.read(redisserver.ShardOf(id))); err != nil {
		return res, err
	}
	if st.Decision.ByPerson() {
		call.Keys = append(call.Keys, s.keys.decisions(redisserver.ShardOf(id)))
		call.Args = append(call.Args, strconv.Itoa(keptDecisions))
	}
	return s.settle(ctx, id, settleScript, call, st.Response)
}

// settle runs a script that settles. response is what it stores.
func (s *Store) settle(ctx context.Context, id driver.KeyID, script *goredis.Script, call redisscript.Call, response *driver.Response) (res driver.SettleResult, err error) {
	r, err := s.runSized(ctx, "settle", id, script, call, len(call.Args[argResponse]))
	if err != nil {
		return res, err
	}
	res = driver.SettleResult{Record: r.record, Repaired: r.verdict == verdictRepaired}
	res.Settled = res.Repaired || r.verdict == verdictSettled
	// The response does not travel back.
	if res.Settled && (res.Record.State == driver.StateCompleted || res.Record.State == driver.StateUnknown) {
		res.Record.Response = response
	}
	return res, nil
}

// argResponse is the place of the response in settleArgs.
const argResponse = 5

// settleArgs are the first 20 ARGV of settle.lua.
func (s *Store) settleArgs(member string, st *driver.Settlement, now reading) ([]string, error) {
	var re driver.Repair
	repair, replaced := "", ""
	if st.Repair != nil {
		re, repair = *st.Repair, "untrusted"
		if st.LeaseTrusted {
			repair = "trusted"
		}
	}
	if re.Replaced != (driver.Replaced{}) {
		replaced = string([]byte{byte(re.Replaced.State)}) + packAttempt(re.Replaced.Attempt)
	}
	if err := s.mayWrite("settle", st.Attempt.Fence.Domain, st.Decision.By, re.Route, re.Replaced.Attempt.Fence.Domain); err != nil {
		return nil, err
	}
	if n := len(st.Decision.Reason); n > maxReason {
		return nil, fmt.Errorf("tokenstore/redis: settle: the decision's reason has %d bytes, want at most %d", n, maxReason)
	}
	resultTTL, keyTTL := max(st.ResultTTL, re.ResultTTL), max(keyTTL(st.KeyTTL), re.KeyTTL)
	if st.State == driver.StateUnknown { // it does not end
		keyTTL = max(st.KeyTTL, re.KeyTTL)
	}
	ttls := packTTLs(resultTTL, keyTTL)
	response, place := []byte(nil), byte(placeNowhere)
	switch st.State {
	case driver.StateCompleted:
		keyTTL = max(keyTTL, resultTTL)
	case driver.StateReleased, driver.StateUnknown:
	default:
		return nil, fmt.Errorf("tokenstore/redis: settle: state %v", st.State)
	}
	if st.Response != nil && st.State != driver.StateReleased {
		var err error
		if response, err = st.Response.AppendBinary(nil); err != nil {
			return nil, fmt.Errorf("tokenstore/redis: settle: %w", err)
		}
		if place = placeInline; len(response) > inlineLimit {
			place = placeApart
		}
	}
	return append(make([]string, 0, 21), // some have one more
		member, packAttempt(st.Attempt), packDomain(st.Attempt.Fence.Domain), string(st.ID[:]),
		string([]byte{byte(st.State)}), string(response), string([]byte{place}),
		millis(resultTTL), millis(keyTTL), st.Decision.By, st.Decision.Reason,
		repair, string([]byte{byte(re.Kind)}), re.Route, packFingerprint(re.Fingerprint), packTime(re.Started),
		replaced, packDomain(re.Replaced.Attempt.Fence.Domain), ttls, now.packed(),
	), nil
}
