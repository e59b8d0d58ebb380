package load

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Records says what stored results take up in Redis.
type Records struct {
	Number int     `json:"number"`
	Bytes  float64 `json:"bytes"` // of each, with its body and its share of Redis's tables
	Body   int     `json:"body_bytes"`
}

const (
	scanCount = 1000 // keys that Redis looks at in one call of SCAN
	keyIDTail = 62   // hexadecimal digits of a key ID behind its shard
)

// dump is a stored result as Redis writes it.
type dump struct {
	key   string
	value string
	ttl   time.Duration
}

// fill copies the results below a prefix under other key IDs until there are so many. The
// copies are the records that a service has written, under keys of the same length and with
// the same time to live. Redis takes them much faster than payments. The prefix has to be
// that of the only case on this Redis.
func fill(ctx context.Context, client goredis.UniversalClient, prefix string, number int) (Records, error) {
	results, err := expiring(ctx, client, prefix)
	if err != nil {
		return Records{}, err
	}
	if len(results) == 0 {
		return Records{}, errors.New("no record to copy")
	}
	originals, err := dumps(ctx, client, results)
	if err != nil {
		return Records{}, err
	}
	before, err := usedMemory(ctx, client)
	if err != nil {
		return Records{}, err
	}
	copies := number - len(originals)
	if err := restore(ctx, client, originals, copies); err != nil {
		return Records{}, err
	}
	after, err := usedMemory(ctx, client)
	if err != nil {
		return Records{}, err
	}
	return Records{Number: number, Bytes: (after - before) / float64(copies), Body: len(receipt)}, nil
}

// expiring lists the keys below a prefix with a time to live. Results have one. What a
// store or a lock needs to go on has none, apart from the canaries, by which a store notices that
// the clock of its server has jumped.
func expiring(ctx context.Context, client goredis.UniversalClient, prefix string) (keys []string, err error) {
	var cursor uint64
	for {
		var page []string
		if page, cursor, err = client.Scan(ctx, cursor, prefix+"*", scanCount).Result(); err != nil {
			return nil, err
		}
		ttls := make([]*goredis.DurationCmd, len(page))
		if _, err := client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for i, key := range page {
				ttls[i] = p.PTTL(ctx, key)
			}
			return nil
		}); err != nil {
			return nil, err
		}
		for i, key := range page {
			if ttls[i].Val() > 0 && !strings.HasSuffix(key, ":canary") {
				keys = append(keys, key)
			}
		}
		if cursor == 0 {
			return keys, nil
		}
	}
}

// forget removes the results below a prefix, so that every round finds the same store.
func forget(ctx context.Context, client goredis.UniversalClient, prefix string) error {
	keys, err := expiring(ctx, client, prefix)
	if err != nil || len(keys) == 0 {
		return err
	}
	return client.Unlink(ctx, keys...).Err()
}

func dumps(ctx context.Context, client goredis.UniversalClient, keys []string) (all []dump, err error) {
	for _, key := range keys {
		if len(key) < keyIDTail || strings.Trim(key[len(key)-keyIDTail:], "0123456789abcdef") != "" {
			return nil, fmt.Errorf("key %q does not end with a key ID", key)
		}
		value, err := client.Dump(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		ttl, err := client.PTTL(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		all = append(all, dump{key[:len(key)-keyIDTail], value, ttl})
	}
	return all, nil
}

func restore(ctx context.Context, client goredis.UniversalClient, originals []dump, copies int) error {
	for done := 0; done < copies; {
		batch := min(len(originals), copies-done)
		if _, err := client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, d := range originals[:batch] {
				var id [keyIDTail / 2]byte
				_, _ = rand.Read(id[:])
				p.Restore(ctx, d.key+hex.EncodeToString(id[:]), d.ttl, d.value)
			}
			return nil
		}); err != nil {
			return err
		}
		done += batch
	}
	return nil
}

// usedMemory is what Redis has allocated, in bytes.
func usedMemory(ctx context.Context, client goredis.UniversalClient) (float64, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	_, value, _ := strings.Cut(info, "used_memory:")
	value, _, _ = strings.Cut(value, "\r\n")
	return strconv.ParseFloat(value, 64)
}
