package testserver_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatalf("ParseURL(%q) = %v", url, err)
	}
	opts.MaxRetries = -1
	opts.ContextTimeoutEnabled = true
	c := redis.NewClient(opts)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSharedRedis_IsOneServer(t *testing.T) {
	t.Parallel()
	url := testserver.SharedRedis(t)
	if again := testserver.SharedRedis(t); again != url {
		t.Fatalf("SharedRedis = %q, then %q", url, again)
	}
	key := testserver.KeyPrefix(t) + "k"
	if err := client(t, url).Set(t.Context(), key, 1, time.Minute).Err(); err != nil {
		t.Fatalf("SET = %v", err)
	}
}

// TestShared_UsesServersNamedByEnvironment runs another test of this binary in
// a process of its own, since shared servers are chosen once.
func TestShared_UsesServersNamedByEnvironment(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	run := func(env string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSharedRedis_IsOneServer$", "-test.v")
		cmd.Env = append(os.Environ(), env)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(testserver.EnvRedis + "=" + r.URL()); err != nil {
		t.Fatalf("with %s: %v\n%s", testserver.EnvRedis, err, out)
	}
	if got, err := r.Do("DBSIZE"); err != nil || got[0] != "1" {
		t.Errorf("DBSIZE of the named server = %v, %v, want 1", got, err)
	}
	out, err := run("PATH=/nonexistent")
	if err == nil || !strings.Contains(out, "install Debian packages") || !strings.Contains(out, testserver.EnvRedis) {
		t.Errorf("without redis-server: %v, want a failure that says what to do\n%s", err, out)
	}
}
