package redisserver

import (
	"fmt"
	"strings"
)

// Shards is the number of parts of all keys. One script touches the keys of one
// shard only, and a shard lies in one slot of a cluster. 64 shards spread evenly over
// a handful of primaries. A higher number would not speed up a single server, and
// all incarnations must fit into one small document of the witness.
//
// It is part of the layout. Instances that differ in it do not see each other's keys.
const Shards = 64

// ShardOf returns the shard of an driver.KeyID.
func ShardOf(id [32]byte) int { return int(id[0]) % Shards }

// ShardName returns the name of a shard: two hexadecimal digits.
func ShardName(shard int) string { return fmt.Sprintf("%02x", shard) }

// Base returns the prefix of all keys of a shard. The braces keep the shard in one
// slot of a cluster.
func Base(prefix string, shard int) string { return prefix + ":{" + ShardName(shard) + "}:" }

// CheckPrefix refuses a prefix that would break the layout.
func CheckPrefix(prefix string) error {
	if prefix == "" || strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("prefix %q: want some text without braces", prefix)
	}
	return nil
}
