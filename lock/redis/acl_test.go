package redislock

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The commands of a user for locks, as docs/around.md has them.
const lockCommands = "+@connection +info +config|get +eval +evalsha +get +getrange +set +del +pttl +pexpire +hmget +hget +hset +time"

// asUser returns a client of a user with some commands only.
func asUser(tb testing.TB, r *testserver.Redis, name, commands string) *goredis.Client {
	tb.Helper()
	rule := append([]string{"ACL", "SETUSER", name, "reset", "on", ">secret", "~idem*"}, strings.Fields(commands)...)
	if _, err := r.Do(rule...); err != nil {
		tb.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: r.Addr(), Username: name, Password: "secret", ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func TestUserWithTheDocumentedCommands(t *testing.T) {
	r := testserver.StartRedis(t)
	client := asUser(t, r, "exact", lockCommands)
	idemtest.RunLocker(t, idemtest.LockerHarness{New: func(tb *testing.T) driver.Locker {
		l, err := New(tb.Context(), client, WithPrefix("idem"+strings.TrimSuffix(testserver.KeyPrefix(tb), ":")))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}})
}

// A user who may not run one of the commands is refused at the start, and Ping notices it later.
func TestUserWithoutACommand(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	for _, command := range []string{"eval", "evalsha", "get", "getrange", "set", "del", "pttl", "pexpire", "hmget", "hset", "time"} {
		without := lockCommands + " -" + command
		if l, err := New(t.Context(), asUser(t, r, "without-"+command, without)); err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("New() without %s = %v, want an error that names it", command, err)
			if l != nil {
				l.Abandon()
			}
		}
		client := asUser(t, r, "later-"+command, lockCommands)
		l, err := New(t.Context(), client)
		if err != nil {
			t.Fatalf("New() = %v, want <nil>", err)
		}
		if command == "eval" {
			l.Abandon() // it is for servers that have forgotten a script
			continue
		}
		if _, err := r.Do("ACL", "SETUSER", "later-"+command, "-"+command); err != nil {
			t.Fatal(err)
		}
		if err := l.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("Ping() without %s = %v, want an error that names it", command, err)
		}
		l.Abandon()
	}
}

// A release that Redis does not permit says so, although its caller's time is over.
func TestReleaseSaysWhyItFails(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l, err := New(t.Context(), asUser(t, r, "u", lockCommands))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Abandon()
	le, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("s", "k"), Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Do("ACL", "SETUSER", "u", "-del"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // so that an answer has come from a busy machine
	defer cancel()
	if err := le.Release(ctx); err == nil || !strings.Contains(err.Error(), "ERR ") { // each version has words of its own
		t.Errorf("Release() = %v, want the answer of Redis", err)
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/around.md")
	if line := "\nACL SETUSER payments_locks on >SECRET ~idem:* " + lockCommands + "\n"; err != nil || !strings.Contains(string(text), line) {
		t.Errorf("docs/around.md has no line %q (%v)", line, err)
	}
}
