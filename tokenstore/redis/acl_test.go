package redisstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The commands of a user for the token store, as docs/around.md has them.
const (
	storeCommands   = "+@connection +info +config|get +mget +get +set +setnx +del +exists +eval +evalsha +time +zadd +zrem +zcount +zrange +lpush +ltrim +lrange +hget +hset +hsetnx +hexists +scan"
	replicaCommands = storeCommands + " +wait"
)

// asUser returns a client of a user with some commands only.
func asUser(tb testing.TB, r *testserver.Redis, name, commands string) *goredis.Client {
	tb.Helper()
	do(tb, r, append([]string{"ACL", "SETUSER", name, "reset", "on", ">secret", "~idem*"}, strings.Fields(commands)...)...)
	client := goredis.NewClient(&goredis.Options{Addr: r.Addr(), Username: name, Password: "secret", ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// The suite on one Redis, which has a replica. The user may run the documented commands, and no others.
func TestStoreOnRedis(t *testing.T) {
	t.Parallel()
	r, replica := testserver.StartRedis(t), testserver.StartRedis(t)
	follow(t, replica, r)
	client := asUser(t, r, "exact", replicaCommands)
	idemtest.RunStore(t, idemtest.StoreHarness{Damage: damage, New: func(tb testing.TB) driver.Store {
		return open(tb, client, WithPrefix("idem"+freshPrefix(tb)), WithReplicas(1, time.Second))
	}})
	s := open(t, client)
	for name, call := range calls {
		if err := call(t.Context(), s); err != nil {
			t.Errorf("%s() = %v, want <nil>", name, err)
		}
	}
}

// A user who may not run one of the commands is refused at the start, and Ping notices it later.
func TestUserWithoutACommand(t *testing.T) {
	t.Parallel()
	r, replica := testserver.StartRedis(t), testserver.StartRedis(t)
	follow(t, replica, r)
	if _, err := New(t.Context(), asUser(t, r, "timeless", storeCommands+" -time"), quiet()); err == nil || !strings.Contains(err.Error(), "ERR ") { // each version has words of its own
		t.Errorf("New() without time = %v, want the answer of Redis", err)
	}
	for _, command := range []string{"mget", "get", "set", "del", "eval", "evalsha", "zadd", "zrem", "zcount", "zrange", "lpush", "ltrim", "lrange", "hget", "hset", "wait"} {
		without, opt := replicaCommands+" -"+command, WithReplicas(1, time.Second)
		if _, err := New(t.Context(), asUser(t, r, "without-"+command, without), quiet(), opt); err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("New() without %s = %v, want an error that names it", command, err)
		}
		if command == "eval" {
			continue // it is for servers that have forgotten a script
		}
		s := open(t, asUser(t, r, "later-"+command, replicaCommands), opt)
		do(t, r, "ACL", "SETUSER", "later-"+command, "-"+command)
		if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("Ping() without %s = %v, want an error that names it", command, err)
		}
	}
}

// A user who may not ask for INFO is served, and a missing replica is noticed without it.
func TestUserWithoutInfo(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	s := open(t, asUser(t, r, "u", replicaCommands+" -info -config"), WithReplicas(1, time.Second))
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("Ping() without a replica = %v, want an error that says so", err)
	}
}

// Ping says whether a Begin would be accepted.
func TestPingOfAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][2][]string{
		"out of memory":    {{"maxmemory", "1"}, {"maxmemory", "0"}},
		"too few replicas": {{"min-replicas-to-write", "1"}, {"min-replicas-to-write", "0"}},
		"a replica":        {nil, nil},
		"a full disk":      {{"save", "3600 1"}, {"save", ""}},
	} {
		r := testserver.StartRedis(t)
		s := open(t, connect(t, r.URL()))
		change := func(i int) {
			switch {
			case name == "a full disk" && i == 0: // a snapshot that fails, because a directory is in its place
				dir, err := r.Do("CONFIG", "GET", "dir")
				if err == nil {
					err = os.MkdirAll(filepath.Join(dir[1], "dump.rdb", "full"), 0o700)
				}
				if err != nil {
					t.Fatal(err)
				}
				do(t, r, append([]string{"CONFIG", "SET"}, settings[i]...)...)
				do(t, r, "BGSAVE")
				await(t, "the end of the snapshot", func() error {
					if info, err := r.Do("INFO", "persistence"); err != nil || !strings.Contains(strings.Join(info, "\n"), "rdb_last_bgsave_status:err") {
						return fmt.Errorf("INFO = %q, %w", info, err)
					}
					return nil
				})
			case settings[i] != nil:
				do(t, r, append([]string{"CONFIG", "SET"}, settings[i]...)...)
			case i == 0:
				do(t, r, "REPLICAOF", "127.0.0.1", "1")
			default:
				do(t, r, "REPLICAOF", "NO", "ONE")
			}
		}
		change(0)
		id, req := newAttempt(driver.ClientKey)
		_, begin := s.Begin(t.Context(), id, req)
		if ping := s.Ping(t.Context()); !errors.Is(begin, driver.ErrNoWrites) || !errors.Is(ping, driver.ErrNoWrites) {
			t.Errorf("%s: Ping() = %v, Begin() = %v, want %v", name, ping, begin, driver.ErrNoWrites)
		}
		if name != "a full disk" { // Redis refuses a PING too
			open(t, connect(t, r.URL())) // another process starts
		}
		change(1)
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("%s no more: Ping() = %v, want <nil>", name, err)
		}
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/around.md")
	if line := "\nACL SETUSER payments on >SECRET ~idem:* " + storeCommands + "\n"; err != nil || !strings.Contains(string(text), line) {
		t.Errorf("docs/around.md has no line %q (%v)", line, err)
	}
}
