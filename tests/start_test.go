package tests

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// What cannot work, or is not safe, is refused at start: one line on standard
// error, exit code 1, within 15 s.
func TestStartIsRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	zk := strings.Join(s.zk, ",")
	dead := testserver.StartTCPProxy(t, s.redis.Addr())
	dead.Refuse(true)
	mute := testserver.StartTCPProxy(t, s.redis.Addr())
	mute.StallAccept(true)
	evicting := testserver.StartRedis(t, testserver.WithRedisArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	claimed := "sqlite:" + filepath.Join(t.TempDir(), "claimed.db")
	startInstance(t, "the first", "--database", claimed)

	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"unknown flag", []string{"--no-such-flag"}},
		{"bad duration", []string{"--session-timeout", "soon"}},
		{"token store without its server", []string{"--token-store", "redis"}},
		{"ZooKeeper refuses", []string{"--zookeeper", dead.Addr(), "--redis", s.redis.URL()}},
		{"ZooKeeper does not answer", []string{"--zookeeper", mute.Addr(), "--redis", s.redis.URL()}},
		{"no ZooKeeper but Redis", []string{"--zookeeper", s.redis.Addr(), "--redis", s.redis.URL()}},
		{"Redis refuses", []string{"--zookeeper", zk + s.chroot, "--redis", "redis://" + dead.Addr()}},
		{"Redis does not answer", []string{"--zookeeper", zk + s.chroot, "--redis", "redis://" + mute.Addr()}},
		{"Redis evicts", []string{"--zookeeper", zk + s.chroot, "--redis", evicting.URL()}},
		{"session too short for its margin", []string{"--zookeeper", zk + s.chroot, "--redis", s.redis.URL(), "--session-timeout", "3s", "--zookeeper-tick", "2s"}},
		{"database claimed by another", []string{"--database", claimed}},
		{"database of no kind", []string{"--database", "nosql:x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			in := spawnInstance(t, tt.name, append([]string{"--log-level", "info"}, tt.flags...)...)
			waitFor(t, "exit", in.exited)
			took := time.Since(start)
			if line := strings.TrimSpace(in.stderr.tail(100)); in.code != 1 || line == "" || strings.Contains(line, "\n") {
				t.Errorf("exit code %d with %q, want 1 with one line", in.code, line)
			}
			if took > 15*time.Second {
				t.Errorf("it took %v, want 15 s at most", took)
			}
			if _, ready := in.stdout.find("ready"); ready {
				t.Error("it said that it was ready")
			}
		})
	}
}
