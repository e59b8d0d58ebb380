package redisstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Ping returns nil if Redis would accept a Begin on every shard. It writes, because a server
// may answer and refuse to write: it is out of memory, its disk is full, it is a replica, it
// has too few replicas, or the user may not run a command. No server may evict keys, and no
// shard may have lost its records. With [WithReplicas] each primary needs enough replicas. A
// read-only store only reads. The error wraps driver.ErrUnavailable or driver.ErrStoreLost.
func (s *Store) Ping(ctx context.Context) error {
	var lost int
	var err error
	if s.readOnly {
		lost, err = s.loss.Lost(ctx)
	} else {
		lost, err = s.loss.LostBy(ctx, func(expected []string) (int, error) { return s.probe(ctx, expected) })
	}
	if err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("tokenstore/redis: ping: %d of %d shards: %w", lost, Shards, driver.ErrStoreLost)
	}
	if err := s.evicts.Refuse(ctx); err != nil {
		return unavailable("ping", err)
	}
	if s.replicas != nil {
		return s.replicas.check(ctx)
	}
	return nil
}

// probe looks at every shard as a Begin does, in one round trip for each server, and leaves
// no record. Whether a server takes writes concerns all its shards, so one of them is written to.
// probe keeps the evidence of the clocks fresh where no payments come. It returns how many shards
// are lost.
func (s *Store) probe(ctx context.Context, expected []string) (lost int, err error) {
	readings, calls := make([]reading, Shards), make([]redisscript.Call, Shards)
	writes, written := make([]string, Shards), make(map[string]bool)
	call := func(shard int, now reading) redisscript.Call {
		names := &s.keys.shards[shard]
		return redisscript.Call{
			Keys: []string{names.none, names.open, names.incarnation, names.none, names.clock, names.canary},
			Args: []string{expected[shard], now.packed(), writes[shard]},
		}
	}
	for shard := range calls {
		if server := s.server(ctx, s.keys.incarnation(shard)); !written[server] {
			writes[shard], written[server] = "1", true
		}
		readings[shard] = s.clocks.read(shard)
		calls[shard] = call(shard, readings[shard])
	}
	var failed error
	for shard, cmd := range s.askAllServers(ctx, probeScript, calls) {
		parts, err := cmd.StringSlice()
		if err != nil { // the clock of another server may have jumped
			failed = cmp.Or(failed, s.failed(ctx, "ping", err))
			continue
		}
		r, err := parseReply("ping", parts)
		if err == nil && r.verdict == verdictJumped {
			r, err = s.ask(ctx, "ping", shard, func(now reading) (reply, error) {
				again := redisscript.Resend(ctx, s.client, probeScript, call(shard, now))
				parts, err := again.StringSlice()
				if err != nil {
					return reply{}, s.failed(ctx, "ping", err)
				}
				return parseReply("ping", parts)
			})
		}
		switch {
		case err != nil:
			failed = cmp.Or(failed, err)
		case r.verdict == verdictLost:
			lost++
		default:
			s.clocks.note(ctx, shard, readings[shard], r.now)
		}
	}
	return lost, failed
}

// CheckRights runs every command of the store's scripts, and so notices a user who may not run one of
// them. The error names the command. It leaves nothing behind and needs no records, so a read-only store
// can do it on behalf of a service, with the user of the service. A server that takes no writes at the
// moment passes, because Ping says so.
func (s *Store) CheckRights(ctx context.Context) error {
	// No shard has the incarnation "", so the script does no more than that.
	_, err := s.probe(ctx, make([]string, Shards))
	if redisserver.Refuses(err) {
		return nil
	}
	return err
}

// checkPermissions refuses a user who may not run what the store needs. A server that takes no
// writes at the moment passes, because Ping says so.
func (s *Store) checkPermissions(ctx context.Context) error {
	if s.readOnly {
		return nil
	}
	_, err := s.loss.LostBy(ctx, func(expected []string) (int, error) { return s.probe(ctx, expected) })
	if redisserver.Refuses(err) {
		return nil
	}
	return err
}
