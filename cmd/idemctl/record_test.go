package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// openStore gives the store of a Redis of the test's own.
func openStore(t *testing.T, opts ...redisstore.Option) (*redisstore.Store, *testserver.Redis) {
	t.Helper()
	server := testserver.StartRedis(t)
	client, err := redisstore.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	store, err := redisstore.New(t.Context(), client, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return store, server
}

// begin starts an attempt for a key of scope "m"; settle brings it to a state.
func begin(t *testing.T, s idem.Store, key idem.Key) idem.Attempt {
	t.Helper()
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
	if err != nil {
		t.Fatal(err)
	}
	fence := idem.Fence{Domain: "d", Token: 7 + uint64(stateOf(t, s, key).Attempt.Number)}
	got, err := s.Begin(t.Context(), idem.NewKeyID("m", key), idem.BeginRequest{Route: "POST /pay",
		Fence: fence, Nonce: idem.NewNonce(), Fingerprint: fp, KeyTTL: time.Hour})
	if err != nil || !got.Begun {
		t.Fatalf("Begin = %+v, %v", got, err)
	}
	return got.Record.Attempt
}

func settle(t *testing.T, s idem.Store, key idem.Key, state idem.State, r *idem.Response) {
	t.Helper()
	a := begin(t, s, key)
	got, err := s.Settle(t.Context(), idem.NewKeyID("m", key), idem.Settlement{Attempt: a, ID: a.Nonce, State: state,
		Response: r, ResultTTL: time.Hour, KeyTTL: time.Hour})
	if err != nil || !got.Settled {
		t.Fatalf("Settle = %+v, %v", got, err)
	}
}

func TestRecordShow(t *testing.T) {
	store, server := openStore(t)
	settle(t, store, "the-key", idem.StateCompleted, &idem.Response{Status: 201,
		Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"id":"pay_1"}`)})
	settle(t, store, "binary", idem.StateCompleted, &idem.Response{Status: 200, Body: []byte("\x1b\xff")})
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
		if got := idemctl(t, env, "record", "show", "--scope", scope, "the-key"); got.code != exitNothing || got.stdout != "" {
			t.Errorf("in scope %q: exit code %d, %q, want %d and nothing", scope, got.code, got.stdout, exitNothing)
		}
	}
}

func showJSON(t *testing.T, env map[string]string, args ...string) row {
	t.Helper()
	got := idemctl(t, env, append([]string{"--json", "record", "show", "--scope", "m"}, args...)...)
	var r row
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != 0 || strings.Count(got.stdout, "\n") != 1 {
		t.Fatalf("exit code %d, %q %q, want one JSON object", got.code, got.stdout, got.stderr)
	}
	return r
}

func TestRecordList(t *testing.T) {
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	if got := idemctl(t, env, "record", "list"); got.code != 0 || got.stdout != "" {
		t.Errorf("empty list: exit code %d, %q, want 0 and nothing", got.code, got.stdout)
	}
	begin(t, store, "first")
	awaitAge(t, store, 2*time.Millisecond) // or the order is not defined
	settle(t, store, "second", idem.StateUnknown, &idem.Response{Status: 503})
	settle(t, store, "third", idem.StateCompleted, &idem.Response{Status: 200})
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
			var r row
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

// awaitAge waits until a record is so old by the store's clock.
func awaitAge(t *testing.T, s idem.Store, age time.Duration) {
	t.Helper()
	for {
		page, err := s.ListOpen(t.Context(), idem.OpenQuery{OlderThan: age})
		list := page.Records
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			return
		}
	}
}

// A ZooKeeper that is down does not keep records from being looked at.
func TestRecordsWithoutTheirZooKeeper(t *testing.T) {
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

// What somebody gives for a name or a reason cannot pass for a line of the record,
// nor turn the text around.
func TestRecordShowsDecisions(t *testing.T) {
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", idem.StateUnknown, nil)
	const by, reason = "eve\nstate  completed\u202e", "r\r\nattempt\t7\u2028\x1b[2J\u200b\U000e0041"
	if got := resolve(t, env, 0, "k", "--not-applied", "--by", by, "--reason", reason); strings.Contains(got.stdout, "\u202e") {
		t.Errorf("resolve printed %q", got.stdout)
	}
	settle(t, store, "k", idem.StateUnknown, nil) // a second attempt
	resolve(t, env, 0, "k", "--not-applied", "--by", "bob")

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
	if again := resolve(t, env, exitNothing, "k", "--not-applied"); !strings.Contains(again.stderr, "released by bob") {
		t.Errorf("a third one is told %q", again.stderr)
	}
	settle(t, store, "eve", idem.StateUnknown, nil)
	resolve(t, env, 0, "eve", "--not-applied", "--by", by)
	if got := idemctl(t, env, "record", "show", "--scope", "m", "eve").stdout; !strings.Contains(got, `decided by   eve\nstate  completed\u202e`+"\n") {
		t.Errorf("decided by: %q", got)
	}
	if again := resolve(t, env, exitNothing, "eve", "--not-applied"); !strings.Contains(again.stderr, `eve\nstate`) && strings.Contains(again.stderr, "\u202e") {
		t.Errorf("who comes later is told %q", again.stderr)
	}
}

func TestStoreAccept(t *testing.T) {
	zk := strings.Join(testserver.SharedZooKeeper(t), ",") + testserver.Chroot(t)
	server := testserver.StartRedis(t)
	flags := []string{"--redis", server.URL(), "--zookeeper", zk, "--zookeeper-tick", "500ms", "--session-timeout", "4s"}
	idem := func(args ...string) ran { return idemctl(t, nil, append(flags, args...)...) }

	if got := idem("store", "accept"); got.code != 0 || !strings.Contains(got.stdout, "nothing was lost") {
		t.Errorf("first use: exit code %d, %q %q", got.code, got.stdout, got.stderr)
	}
	wipe(t, server.URL())
	if got := idem("record", "show", "--scope", "m", "k"); got.code != exitFailed || !strings.Contains(got.stderr, "lost") ||
		strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("record show on a wiped Redis: exit code %d, %q, want %d and that it was lost", got.code, got.stderr, exitFailed)
	}
	if got := idem("--json", "store", "accept"); got.code != 0 || got.stdout != `{"accepted_shards":64}`+"\n" {
		t.Errorf("store accept: exit code %d, %q %q, want 64 shards", got.code, got.stdout, got.stderr)
	}
	if got := idem("record", "show", "--scope", "m", "k"); got.code != exitNothing {
		t.Errorf("record show after it: exit code %d, %q, want %d", got.code, got.stderr, exitNothing)
	}
}

func wipe(t *testing.T, url string) {
	t.Helper()
	client, err := redisstore.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
}

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
