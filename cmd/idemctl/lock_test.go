package main

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// An ensemble may grant a session too short for the margin of the default tick. The
// commands work with it.
func TestDefaultsFitAnEnsembleOfShortSessions(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t, testserver.WithConfig("maxSessionTimeout=3000"))
	redis := testserver.StartRedis(t)
	flags := []string{"--zookeeper", server.Addr() + testserver.Chroot(t)}
	for _, args := range [][]string{
		{"lock", "/short", "--", "true"},
		{"--redis", redis.URL(), "store", "accept"},
	} {
		if got := idemctl(t, nil, append(flags, args...)...); got.code != cli.ExitDone {
			t.Errorf("idemctl %q: exit code %d, %q, want %d", args, got.code, got.stderr, cli.ExitDone)
		}
	}
}

// A command gets its fence, but not idemctl's passwords.
func TestCommandsGetNoSecrets(t *testing.T) {
	env := ensembleEnv(t, "")
	for name, value := range map[string]string{"REDIS": "redis://:hidden1@h", "DATABASE": "postgres://:hidden2@h", "RESPONSE_KEYS": "k=hidden3",
		"ZOOKEEPER_AUTH": "u:hidden4", "ZOOKEEPER": env["IDEMCTL_ZOOKEEPER"]} {
		t.Setenv("IDEMCTL_"+name, value)
	}
	for _, args := range [][]string{{"lock"}, {"semaphore", "--permits", "1"}} {
		got := idemctl(t, env, append(args, "/"+args[0], "--", "env")...)
		if got.code != 0 || !strings.Contains(got.stdout, "IDEM_FENCE=") || !strings.Contains(got.stdout, "IDEMCTL_ZOOKEEPER="+env["IDEMCTL_ZOOKEEPER"]) {
			t.Errorf("%q = %+v", args, got)
		}
		if strings.Contains(got.stdout, "hidden") {
			t.Errorf("%q hands on secrets:\n%s", args, got.stdout)
		}
	}
}
