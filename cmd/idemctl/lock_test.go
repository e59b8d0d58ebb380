package main

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// An ensemble may grant less than the default of --session-timeout, and so little
// that the default tick leaves it no room. The commands work with what they get.
func TestDefaultsFitAnEnsembleOfShortSessions(t *testing.T) {
	server := testserver.StartZooKeeper(t, testserver.WithConfig("maxSessionTimeout=3000"))
	redis := testserver.StartRedis(t)
	flags := []string{"--zookeeper", server.Addr() + testserver.Chroot(t)}
	for _, args := range [][]string{
		{"lock", "/short", "--", "true"},
		{"--redis", redis.URL(), "store", "accept"},
	} {
		if got := idemctl(t, nil, append(flags, args...)...); got.code != exitDone {
			t.Errorf("idemctl %q: exit code %d, %q, want %d", args, got.code, got.stderr, exitDone)
		}
	}
}
