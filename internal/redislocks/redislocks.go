// Package redislocks has what a lock in Redis looks like, for the locker and for a store that takes
// locks in its own calls.
package redislocks

import (
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Lua has lua/acquire.lua, a function of scripts.
//
//go:embed lua/acquire.lua
var Lua embed.FS

// Acquire is the file of the function.
const Acquire = "lua/acquire.lua"

// Keys names the keys of locks. Make it with [NewKeys].
type Keys [redisserver.Shards]struct{ lock, fences string }

// NewKeys returns the names of the keys with a prefix.
func NewKeys(prefix string) *Keys {
	k := new(Keys)
	for shard := range k {
		base := redisserver.Base(prefix, shard)
		k[shard].lock, k[shard].fences = base+"lock:", base+"fences"
	}
	return k
}

// Lock is the key of a lock.
func (k *Keys) Lock(id driver.KeyID) string {
	return string(hex.AppendEncode(append(make([]byte, 0, 128), k[redisserver.ShardOf(id)].lock...), id[:]))
}

// Fences is the key with the domain and the latest token of a shard.
func (k *Keys) Fences(shard int) string { return k[shard].fences }

// Ping is a key of a shard that is no lock.
func (k *Keys) Ping(shard int) string { return k[shard].lock + "ping" }

// Args are owner, holder and time to live as scripts take them.
func Args(lock driver.OfferedLock) (owner, holder, ttl string) {
	return lock.Owner, lock.Nonce.String() + " " + lock.Note, strconv.FormatInt(lock.TTL.Milliseconds(), 10)
}

// Fence reads token and domain of a script's answer.
func Fence(token, domain string) (driver.Fence, error) {
	n, err := strconv.ParseUint(token, 10, 64)
	if err != nil || n == 0 || domain == "" {
		return driver.Fence{}, fmt.Errorf("%q %q: not a fence", token, domain)
	}
	return driver.Fence{Domain: domain, Token: n}, nil
}

// space names the place of locks. Two that are equal are the same place.
type space struct {
	client any // a pointer
	prefix string
}

// Space is the LockSpace of a locker and of a store.
func Space(client goredis.UniversalClient, prefix string) any {
	switch client.(type) {
	case *goredis.Client, *goredis.ClusterClient:
		return space{client, prefix}
	}
	return nil // perhaps not comparable
}
