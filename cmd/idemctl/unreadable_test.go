package main

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// What cannot be read is shown with its reason, and hides nothing else.
func TestRecordsThatCannotBeRead(t *testing.T) {
	store, server := openStore(t)
	for _, key := range []idem.Key{"a", "newer", "z"} {
		begin(t, store, key)
	}
	client, err := redisstore.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	id := idem.NewKeyID("m", "newer")
	keys, err := client.Keys(t.Context(), "*"+id.String()).Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("KEYS = %q, %v, want the record's", keys, err)
	}
	if err := client.SetRange(t.Context(), keys[0], 0, "\x02").Err(); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	for _, args := range []string{"record list", "--json record list", "record list --state unknown", "record show --scope m newer", "--json record show --scope m newer"} {
		got := idemctl(t, env, strings.Fields(args)...)
		if got.code != 0 || !strings.Contains(got.stdout, "unreadable") || !strings.Contains(got.stdout, "version 2") || !strings.Contains(got.stdout, id.String()) {
			t.Errorf("%s: exit code %d, %s%s, want the record as unreadable, of version 2", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := idemctl(t, env, "record", "list"); strings.Count(got.stdout, "pending") != 2 {
		t.Errorf("record list: %s, want the other two, too", got.stdout)
	}
	if got := idemctl(t, env, "doctor"); !strings.Contains(got.stdout, "unreadable-records") {
		t.Errorf("doctor: %s, want a line of unreadable records", got.stdout)
	}
}
