package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/record"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestRecordShow(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	settle(t, store, "the-key", driver.StateCompleted, &idem.Response{Status: 201,
		Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"id":"pay_1"}`)})
	settle(t, store, "binary", driver.StateCompleted, &idem.Response{Status: 200, Body: []byte("\x1b\xff")})
	if _, err := store.Issue(t.Context(), idem.NewKeyID("m", "token"), time.Hour); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	id := idem.NewKeyID("m", "the-key")

	got := idemctl(t, env, "record", "show", "--scope", "m", "the-key")
	for _, want := range []string{id.String(), id.OperationID(), "completed", "POST /pay", "status 201, 14 bytes", "client-key", "d/7"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("exit code %d, no %q in:\n%s%s", got.code, want, got.stdout, got.stderr)
		}
	}
	if strings.Contains(got.stdout, "pay_1") || strings.Contains(got.stdout, "the-key") {
		t.Errorf("body or key shown without being asked for:\n%s", got.stdout)
	}

	if byOperation := idemctl(t, env, "record", "show", "--operation", id.OperationID()); byOperation.code != 0 || !strings.Contains(byOperation.stdout, id.String()) {
		t.Errorf("--operation: %+v, want the record", byOperation)
	}
	for want, args := range map[int][]string{cli.ExitNothing: {"--operation", "op_0"}, cli.ExitUsage: {"--operation", id.OperationID(), "--scope", "m"}} {
		if got := idemctl(t, env, append([]string{"record", "show"}, args...)...); got.code != want || got.stdout != "" {
			t.Errorf("record show %q: %+v, want exit code %d", args, got, want)
		}
	}

	r := showJSON(t, env, "--body", `"the-key"`)
	if r.KeyID != id.String() || r.State != "completed" || r.Attempt != 1 || r.Since == nil || time.Since(*r.Since).Abs() > time.Minute ||
		r.Status != 201 || r.Body == nil || *r.Body != `{"id":"pay_1"}` || r.Headers["Content-Type"][0] != "application/json" {
		t.Errorf("JSON is %+v", r)
	}
	if r := showJSON(t, env, "the-key"); r.Body != nil || r.Headers != nil {
		t.Errorf("JSON without --body is %+v", r)
	}
	if r := showJSON(t, env, "--body", "binary"); r.Body != nil || string(r.BodyBase64) != "\x1b\xff" {
		t.Errorf("JSON of a binary body is %+v", r)
	}
	if r := showJSON(t, env, "token"); r.State != "issued" || r.Kind != "issued-token" || r.Attempt != 0 || r.TokenExpires == nil {
		t.Errorf("JSON of an issued token is %+v", r)
	}
	if got := idemctl(t, env, "record", "show", "--scope", "m", "--body", "binary"); strings.Contains(got.stdout, "\x1b") {
		t.Errorf("a control character reaches the terminal: %q", got.stdout)
	}
	for _, scope := range []string{"other", ""} {
		if got := idemctl(t, env, "record", "show", "--scope", scope, "the-key"); got.code != cli.ExitNothing || got.stdout != "" {
			t.Errorf("in scope %q: exit code %d, %q, want %d and nothing", scope, got.code, got.stdout, cli.ExitNothing)
		}
	}
}

func TestRecordList(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	if got := idemctl(t, env, "record", "list"); got.code != 0 || got.stdout != "" {
		t.Errorf("empty list: exit code %d, %q, want 0 and nothing", got.code, got.stdout)
	}
	begin(t, store, "first")
	awaitAge(t, store, 2*time.Millisecond) // or the order is not defined
	settle(t, store, "second", driver.StateUnknown, &idem.Response{Status: 503})
	settle(t, store, "third", driver.StateCompleted, &idem.Response{Status: 200})
	tests := []struct {
		args string
		want string // states, in order
	}{
		{"", "pending unknown"},
		{"--state unknown", "unknown"},
		{"--state pending", "pending"},
		{"--older-than 1h", ""},
		{"--limit 1", "pending"},
	}
	for _, tt := range tests {
		args := strings.Fields("record list " + tt.args)
		var states []string
		for line := range strings.Lines(idemctl(t, env, append(args, "--json")...).stdout) {
			var r record.Row
			if err := json.Unmarshal([]byte(line), &r); err != nil || r.KeyID == "" || r.Since == nil || r.Attempt != 1 {
				t.Errorf("record list %s: line %q, %v", tt.args, line, err)
			}
			states = append(states, r.State)
		}
		if got := strings.Join(states, " "); got != tt.want {
			t.Errorf("record list %s: states %q, want %q", tt.args, got, tt.want)
		}
		table := idemctl(t, env, args...).stdout
		if got := strings.Count(table, "\n"); tt.want != "" && got != len(states)+1 || tt.want == "" && got != 0 {
			t.Errorf("record list %s: %d lines:\n%s", tt.args, got, table)
		}
	}
}

// The table fits a terminal, and its pages have each record once.
func TestRecordListHasPages(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		for i := range 7 {
			s.doubt(fmt.Sprint("k", i), created)
		}
		id, nonce := idem.NewKeyID("m", "wide"), driver.NewNonce()
		fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Begin(t.Context(), id, driver.BeginRequest{Route: "POST /" + strings.Repeat("ä", 100), Fence: driver.Fence{Domain: strings.Repeat("d", 200), Token: 1<<64 - 1}, Nonce: nonce, Fingerprint: fp}); err != nil {
			t.Fatal(err)
		}
		seen, after := map[string]bool{}, ""
		for pages := 0; pages == 0 || after != ""; pages++ {
			got := idemctl(t, s.env, "record", "list", "--limit", "3", "--after", after)
			if got.code != 0 || pages > 3 {
				t.Fatalf("record list --after %q = %+v", after, got)
			}
			for line := range strings.Lines(got.stdout) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 120 {
					t.Errorf("%d columns in %q", n, line)
				}
				if cells := strings.Fields(line); cells[0] != "STATE" {
					if key := cells[len(cells)-1]; seen[key] {
						t.Errorf("%s is there twice", key)
					} else {
						seen[key] = true
					}
				}
			}
			_, after, _ = strings.Cut(strings.TrimSpace(got.stderr), "--after ")
		}
		if len(seen) != 8 {
			t.Errorf("%d records, want 8", len(seen))
		}
		if got := idemctl(t, s.env, "record", "list", "--after", "x"); got.code != cli.ExitUsage {
			t.Errorf("record list --after x = %+v, want wrong use", got)
		}
	})
}

// A ZooKeeper that is down does not keep records from being looked at.
func TestRecordsWithoutTheirZooKeeper(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	begin(t, store, "k")
	env := map[string]string{"IDEMCTL_REDIS": server.URL(), "IDEMCTL_ZOOKEEPER": "127.0.0.1:1"}
	for _, args := range []string{"record list", "record show --scope m k"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel() // each waits for ZooKeeper
			got := idemctl(t, env, strings.Fields(args)...)
			if got.code != 0 || !strings.Contains(got.stdout, "pending") || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "--zookeeper") {
				t.Errorf("%+v, want the record, and a line that ZooKeeper is left out", got)
			}
		})
	}
}

// The text of a name or a reason cannot look like a line of the record, or change the
// direction of writing.
func TestRecordShowsDecisions(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", driver.StateUnknown, nil)
	const by, reason = "eve\nstate  completed\u202e", "r\r\nattempt\t7\u2028\x1b[2J\u200b\U000e0041"
	if got := resolveExits(t, env, 0, "k", "--not-applied", "--by", by, "--reason", reason); strings.Contains(got.stdout, "\u202e") {
		t.Errorf("resolve printed %q", got.stdout)
	}
	settle(t, store, "k", driver.StateUnknown, nil) // a second attempt
	resolveExits(t, env, 0, "k", "--not-applied", "--by", "bob")

	got := idemctl(t, env, "record", "show", "--scope", "m", "k")
	var decisions []string
	for line := range strings.Lines(got.stdout) {
		if rest, found := strings.CutPrefix(line, "decision "); found {
			decisions = append(decisions, strings.TrimSpace(rest))
		}
	}
	want := `attempt 1 released by eve\nstate  completed\u202e: r\r\nattempt\t7\u2028\x1b[2J\u200b\U000e0041`
	if len(decisions) != 2 || !strings.HasSuffix(decisions[0], "attempt 2 released by bob") || !strings.HasSuffix(decisions[1], want) {
		t.Errorf("decisions are %q, want the second attempt's, and %q", decisions, want)
	}
	if strings.ContainsAny(got.stdout, "\u202e\u2028\x1b\u200b\r") || strings.Count(got.stdout, "\nstate ") != 1 {
		t.Errorf("record show printed %q", got.stdout)
	}
	text := idemctl(t, env, "--json", "record", "show", "--scope", "m", "k")
	r := showJSON(t, env, "k")
	if len(r.Decisions) != 2 || r.Decisions[0].By != "bob" || r.Decisions[1].By != by || r.Decisions[1].Reason != reason ||
		r.Decisions[1].Attempt != 1 || r.Decisions[1].State != "released" || time.Since(r.Decisions[1].At).Abs() > time.Minute {
		t.Errorf("decisions are %+v", r.Decisions)
	}
	if strings.ContainsAny(text.stdout, "\u202e\u2028\u200b\U000e0041") {
		t.Errorf("JSON is %q", text.stdout)
	}
	if again := resolveExits(t, env, cli.ExitNothing, "k", "--not-applied"); !strings.Contains(again.stderr, "released by bob") {
		t.Errorf("a third one is told %q", again.stderr)
	}
	settle(t, store, "eve", driver.StateUnknown, nil)
	resolveExits(t, env, 0, "eve", "--not-applied", "--by", by)
	if got := idemctl(t, env, "record", "show", "--scope", "m", "eve").stdout; !strings.Contains(got, `decided by   eve\nstate  completed\u202e`+"\n") {
		t.Errorf("decided by: %q", got)
	}
	if again := resolveExits(t, env, cli.ExitNothing, "eve", "--not-applied"); !strings.Contains(again.stderr, `eve\nstate`) && strings.Contains(again.stderr, "\u202e") {
		t.Errorf("who comes later is told %q", again.stderr)
	}
}

func TestStoreAccept(t *testing.T) {
	t.Parallel()
	chroot := testserver.Chroot(t)
	zk := strings.Join(testserver.SharedZooKeeper(t), ",") + chroot
	server := testserver.StartRedis(t)
	flags := []string{"--redis", server.URL(), "--zookeeper", zk, "--zookeeper-tick", "500ms", "--session-timeout", "4s"}
	idem := func(args ...string) ran { return idemctl(t, nil, append(flags, args...)...) }

	if got := idem("store", "accept"); got.code != 0 || !strings.Contains(got.stdout, "nothing was lost") {
		t.Errorf("first use: exit code %d, %q %q", got.code, got.stdout, got.stderr)
	}
	wipe(t, server)
	if got := idem("record", "show", "--scope", "m", "k"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "lost") ||
		strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("record show on a wiped Redis: exit code %d, %q, want %d and that it was lost", got.code, got.stderr, cli.ExitFailed)
	}
	address := strings.TrimPrefix(server.URL(), "redis://")
	want := fmt.Sprintf(`{"accepted_shards":64,"prefix":"idem","redis":%q,"witness":%q}`, address, chroot+"/idem/redis") + "\n"
	if got := idem("--json", "store", "accept"); got.code != 0 || got.stdout != want {
		t.Errorf("store accept: exit code %d, %q %q, want %s", got.code, got.stdout, got.stderr, want)
	}
	if got := idem("record", "show", "--scope", "m", "k"); got.code != cli.ExitNothing {
		t.Errorf("record show after it: exit code %d, %q, want %d", got.code, got.stderr, cli.ExitNothing)
	}

	// Another service has another prefix, and so another znode. The command says whose loss it accepts.
	other := testserver.StartRedis(t)
	flags = append(flags, "--prefix", "team-b", "--redis", other.URL())
	idem("store", "accept")
	wipe(t, other)
	got := idem("store", "accept")
	whose := fmt.Sprintf(`the store with the prefix "team-b" in Redis %s, which its services remember in the znode %s/idem/redis/team-b`, strings.TrimPrefix(other.URL(), "redis://"), chroot)
	if got.code != 0 || !strings.Contains(got.stderr, "accepting what was lost in "+whose) || !strings.Contains(got.stdout, "accepted the loss of 64 shards of "+whose) {
		t.Errorf("store accept of another prefix: exit code %d, %q %q, want both to name %s", got.code, got.stdout, got.stderr, whose)
	}
	flags = append(flags, "--prefix", "idem", "--redis", server.URL())
	if got := idem("store", "accept"); got.code != 0 || !strings.Contains(got.stdout, "nothing was lost") {
		t.Errorf("store accept of the first service: exit code %d, %q %q, want that nothing was lost", got.code, got.stdout, got.stderr)
	}

	// With the prefix of the first service, the second one would take its znode.
	flags = append(flags, "--redis", other.URL())
	if got := idem("store", "accept"); got.code != 0 || !strings.Contains(got.stderr, "was written for the Redis at "+address) {
		t.Errorf("store accept with the znode of another Redis: exit code %d, %q, want its address", got.code, got.stderr)
	}
	flags = append(flags, "--prefix", "team-c", "--witness", "/idem/redis")
	if got := idem("store", "accept"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, `"team-c"`) {
		t.Errorf("store accept with the znode of another prefix: exit code %d, %q, want %d and both prefixes", got.code, got.stderr, cli.ExitFailed)
	}
}

// An unreadable record is shown with its reason, and the others are shown too.
func TestRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	for _, key := range []idem.Key{"a", "newer", "z"} {
		begin(t, store, key)
	}
	client := redisClient(t, server)
	id := idem.NewKeyID("m", "newer")
	keys, err := client.Keys(t.Context(), "*"+id.String()).Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("KEYS = %q, %v, want the record's", keys, err)
	}
	if err := client.SetRange(t.Context(), keys[0], 0, "\x7f").Err(); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	for _, args := range []string{"record list", "--json record list", "record list --state unknown", "record show --scope m newer", "--json record show --scope m newer"} {
		got := idemctl(t, env, strings.Fields(args)...)
		if got.code != 0 || !strings.Contains(got.stdout, "unreadable") || !strings.Contains(got.stdout, "version 127") || !strings.Contains(got.stdout, id.String()) {
			t.Errorf("%s: exit code %d, %s%s, want the record as unreadable, of version 127", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := idemctl(t, env, "record", "list"); strings.Count(got.stdout, "pending") != 2 {
		t.Errorf("record list: %s, want the other two, too", got.stdout)
	}
	if got := idemctl(t, env, "doctor"); !strings.Contains(got.stdout, "unreadable-records") {
		t.Errorf("doctor: %s, want a line of unreadable records", got.stdout)
	}
}
