package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// record show and list tell of the holder of an attempt, before and after it has gone.
func TestRecordTellsOfItsHolder(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{"redis", "zookeeper"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			store, server := openStore(t)
			env := map[string]string{"IDEMCTL_REDIS": server.URL()}
			var locker driver.Locker
			if lock == "redis" {
				locker = redisLocker(t, server)
			} else {
				env = ensembleEnv(t, server.URL())
				locker = zooKeeperLocker(t, env)
			}
			lease := beginUnder(t, store, locker, "k")
			process := "(process " + strconv.Itoa(os.Getpid()) + ")"
			want := func(key string, alive bool, parts ...string) {
				t.Helper()
				show := idemctl(t, env, "record", "show", "--scope", "m", key)
				list := idemctl(t, env, "--json", "record", "list")
				table := idemctl(t, env, "record", "list")
				if word := map[bool]string{true: " alive ", false: " gone "}[alive]; !strings.Contains(table.stdout, word) {
					t.Errorf("no %q in\n%s%s", word, table.stdout, table.stderr)
				}
				for _, part := range parts {
					if !strings.Contains(show.stdout, part) || !strings.Contains(list.stdout, part) {
						t.Errorf("no %q in\n%s%s\n%s%s", part, show.stdout, show.stderr, list.stdout, list.stderr)
					}
				}
				r := showJSON(t, env, key)
				if r.HolderAlive == nil || *r.HolderAlive != alive || alive != (r.HolderPID == os.Getpid()) || r.Next == "" || r.AgeSeconds <= 0 {
					t.Errorf("JSON is %+v, want a holder that lives: %v", r, alive)
				}
			}
			want("k", true, "alive: ", process, "when the handler ends")
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			id := idem.NewKeyID("m", "k").String()
			want("k", false, "gone: no process", "asks the route's resolver", "idemctl record resolve --key-id "+id+" --attempt 1")
		})
	}
}

// A lock that idemctl cannot see is no sign of a dead holder.
func TestRecordOfLocksElsewhere(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	begin(t, store, "k")
	got := idemctl(t, map[string]string{"IDEMCTL_REDIS": server.URL()}, "--json", "record", "list")
	if !strings.Contains(got.stdout, "not known: its lock is in the domain d") || !strings.Contains(got.stdout, "idemctl store retire d") || strings.Contains(got.stdout, "gone") {
		t.Errorf("record list: %s%s", got.stdout, got.stderr)
	}
	r := showJSON(t, map[string]string{"IDEMCTL_REDIS": server.URL()}, "k")
	if r.HolderAlive != nil || r.Settle == "" {
		t.Errorf("JSON is %+v, want no word on whether the holder lives", r)
	}
}
