package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ driver.Forgetter = (*Store)(nil)

// Forget removes the stored response of a key, and leaves the key. The append-only file of Redis, its
// snapshots and its replicas have the response until they are rewritten or have followed. The error wraps
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Forget(ctx context.Context, id driver.KeyID, d driver.Decision) (driver.Record, error) {
	if err := s.mayWrite("forget", d.By); err != nil {
		return driver.Record{}, err
	}
	if n := len(d.Reason); n > maxReason {
		return driver.Record{}, fmt.Errorf("tokenstore/redis: forget: the decision's reason has %d bytes, want at most %d", n, maxReason)
	}
	keys, nonce := s.keys.of(id), driver.NewNonce()
	for {
		rec, err := s.Get(ctx, id)
		if err != nil {
			return rec, err
		}
		rest := rules.Forgotten(rec)
		if rest == nil {
			return rec, nil
		}
		packed, err := rest.AppendBinary(nil)
		if err != nil {
			return rec, fmt.Errorf("tokenstore/redis: forget: %w", err)
		}
		r, err := s.run(ctx, "forget", id, forgetScript, redisscript.Call{
			Keys: keys.list(s.keys.decisions(redisserver.ShardOf(id))),
			Args: []string{keys.member(), string(nonce[:]), d.By, d.Reason, packAttempt(rec.Attempt), packDomain(rec.Attempt.Fence.Domain),
				string([]byte{byte(rec.State)}), string(packed), strconv.Itoa(keptDecisions)},
		})
		if err != nil {
			return rec, err
		}
		if r.verdict == verdictSettled { // otherwise the record has changed since it was read
			rec.Response, rec.ResponseErr = rest, nil
			return rec, nil
		}
	}
}
