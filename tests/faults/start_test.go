package faults

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// What cannot work, or is not safe, is refused at start: one line on standard
// error, exit code 1, within 15 s.
func TestStartIsRefused(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	zk := strings.Join(s.ZK, ",")
	dead := testserver.StartTCPProxy(t, s.Redis.Addr())
	dead.Refuse(true)
	mute := testserver.StartTCPProxy(t, s.Redis.Addr())
	mute.StallAccept(true)
	evicting := testserver.StartRedis(t, testserver.WithRedisArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	claimed := "sqlite:" + filepath.Join(t.TempDir(), "claimed.db")
	kit.StartInstance(t, "the first", "--database", claimed)

	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"unknown flag", []string{"--no-such-flag"}},
		{"bad duration", []string{"--session-timeout", "soon"}},
		{"token store without its server", []string{"--token-store", "redis"}},
		{"ZooKeeper refuses", []string{"--zookeeper", dead.Addr(), "--redis", s.Redis.URL()}},
		{"ZooKeeper does not answer", []string{"--zookeeper", mute.Addr(), "--redis", s.Redis.URL()}},
		{"no ZooKeeper but Redis", []string{"--zookeeper", s.Redis.Addr(), "--redis", s.Redis.URL()}},
		{"Redis refuses", []string{"--zookeeper", zk + s.Chroot, "--redis", "redis://" + dead.Addr()}},
		{"Redis does not answer", []string{"--zookeeper", zk + s.Chroot, "--redis", "redis://" + mute.Addr()}},
		{"Redis evicts", []string{"--zookeeper", zk + s.Chroot, "--redis", evicting.URL()}},
		{"session too short for its margin", []string{"--zookeeper", zk + s.Chroot, "--redis", s.Redis.URL(), "--session-timeout", "3s", "--zookeeper-tick", "2s"}},
		{"database claimed by another", []string{"--database", claimed}},
		{"database of no kind", []string{"--database", "nosql:x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			in := kit.SpawnInstance(t, tt.name, append([]string{"--log-level", "info"}, tt.flags...)...)
			kit.WaitFor(t, "exit", in.Exited)
			took := time.Since(start)
			if line := strings.TrimSpace(in.Stderr.Tail(100)); in.Code != 1 || line == "" || strings.Contains(line, "\n") {
				t.Errorf("exit code %d with %q, want 1 with one line", in.Code, line)
			}
			if took > 15*time.Second {
				t.Errorf("it took %v, want 15 s at most", took)
			}
			if _, ready := in.Stdout.Find("ready"); ready {
				t.Error("it said that it was ready")
			}
		})
	}
}
