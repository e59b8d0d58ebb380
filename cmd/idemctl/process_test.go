package main

import (
	"strings"
	"testing"
)

// A command gets its fence, and none of idemctl's passwords.
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
