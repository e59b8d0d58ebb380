package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/record"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

const paid = `{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{\"id\":\"pay_1\"}"}`

func TestResolveApplied(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", driver.StateUnknown, &idem.Response{Status: 503})
	got := resolveExits(t, env, 0, "k", "--applied", answerFile(t, paid), "--by", "alice", "--reason", "in the ledger")
	if !strings.Contains(got.stderr, "no lock was taken") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("standard error is %q, want one line that says that no lock was taken", got.stderr)
	}
	var r record.Row
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.State != "completed" || r.DecidedBy != "alice" || r.Reason != "in the ledger" || r.Status != 201 ||
		r.ResultExpires.Sub(*r.Since) != idem.DefaultResultTTL || r.KeyExpires.Sub(*r.Since) != idem.DefaultKeyTTL {
		t.Errorf("printed %s, %v", got.stdout, err)
	}
	rec := stateOf(t, store, "k")
	if rec.State != driver.StateCompleted || string(rec.Response.Body) != `{"id":"pay_1"}` || rec.Response.Header["Content-Type"][0] != "application/json" {
		t.Errorf("record = %+v, %+v", rec, rec.Response)
	}
	again := resolveExits(t, env, cli.ExitNothing, "k", "--not-applied")
	if !strings.Contains(again.stderr, "was settled already, and the record is completed by alice since") || strings.Contains(again.stderr, "nothing there") {
		t.Errorf("a second one is told %q", again.stderr)
	}
}

func TestResolveNotApplied(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", driver.StateUnknown, nil)
	id := idem.NewKeyID("m", "k")
	got := idemctl(t, env, "record", "resolve", "--key-id", id.String(), "--not-applied", "--key-ttl", "1h", "--result-ttl", "1m")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	rec := stateOf(t, store, "k")
	if got.code != 0 || rec.State != driver.StateReleased || rec.Decision != (driver.Decision{By: me.Username}) || rec.KeyExpires.Sub(rec.Settled) != time.Hour {
		t.Errorf("%+v left %+v", got, rec)
	}
	for _, part := range []string{"released", me.Username, id.OperationID()} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("no %q in\n%s", part, got.stdout)
		}
	}
	resolveExits(t, env, cli.ExitNothing, "nobody-knows-it", "--not-applied")
}

// An operator does not know the times of the route, and the record does.
func TestResolveKeepsTheTimesOfTheRoute(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	for name, args := range map[string][]string{"as-usual": nil, "shorter": {"--result-ttl", "1m", "--key-ttl", "1m"}} {
		a := beginFor(t, store, idem.Key(name), 15*24*time.Hour, 30*24*time.Hour)
		if got, err := store.Settle(t.Context(), idem.NewKeyID("m", idem.Key(name)), driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateUnknown}); err != nil || !got.Settled {
			t.Fatalf("Settle() = %+v, %v", got, err)
		}
		if got := showJSON(t, env, name); got.ResultTTL != 15*24*3600 || got.KeyTTL != 30*24*3600 {
			t.Errorf("record show = times of %v and %v seconds, want 15 and 30 days", got.ResultTTL, got.KeyTTL)
		}
		got := resolveExits(t, env, 0, append([]string{name, "--applied", answerFile(t, paid)}, args...)...)
		if rec := stateOf(t, store, idem.Key(name)); rec.ResultExpires.Sub(rec.Settled) != 15*24*time.Hour || rec.KeyExpires.Sub(rec.Settled) != 30*24*time.Hour {
			t.Errorf("%s: record resolve left a result until %v and a key until %v, settled at %v, want 15 and 30 days", name, rec.ResultExpires, rec.KeyExpires, rec.Settled)
		}
		if strings.Contains(got.stderr, "earlier version") {
			t.Errorf("%s: record resolve said %q", name, got.stderr)
		}
	}
	a := beginFor(t, store, "before", 0, 0)
	if got, err := store.Settle(t.Context(), idem.NewKeyID("m", "before"), driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateUnknown}); err != nil || !got.Settled {
		t.Fatalf("Settle() = %+v, %v", got, err)
	}
	got := resolveExits(t, env, 0, "before", "--not-applied")
	if !strings.Contains(got.stderr, "remembered for 168h0m0s") || !strings.Contains(got.stderr, "--key-ttl") {
		t.Errorf("record resolve of a record without times said %q, want for how long it is remembered", got.stderr)
	}
}

// A wrong FILE gives exit code 2, and the record stays as it was.
func TestResolveRefusesFile(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", driver.StateUnknown, &idem.Response{Status: 503})
	before := stateOf(t, store, "k")
	for _, file := range []string{`{}`, `{"status":0}`, `{"status":201,"body":"a","body_base64":"YQ=="}`, `{"status":201,"headers":{"X":["a"]}}`, `{"status":201,"extra":1}`,
		`{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{\"id\":\"pay_1\""}`} {
		resolveExits(t, env, cli.ExitUsage, "k", "--applied", answerFile(t, file))
	}
	if after := stateOf(t, store, "k"); after.State != before.State || !after.Settled.Equal(before.Settled) {
		t.Errorf("record = %+v, was %+v", after, before)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--redis", server.URL(), "record", "resolve", "--scope", "m", "k", "--applied", "-", "--allow-header", "x"},
		func(string) string { return "" }, strings.NewReader(`{"status":201,"headers":{"X":["a"]}}`), &out, &errs)
	if rec := stateOf(t, store, "k"); code != 0 || rec.State != driver.StateCompleted || rec.Response.Header["X"][0] != "a" {
		t.Errorf("from standard input: exit code %d, %s", code, errs.String())
	}
}

// A pending attempt of an unknown domain is decided only after the domain was retired,
// and only under the right lock. A domain in use is not retired.
func TestResolvePendingOfARetiredDomain(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	begin(t, store, "k")
	got := resolveExits(t, env, cli.ExitFailed, "k", "--not-applied")
	for _, part := range []string{"pending", "lock domain d,", "--zookeeper", "store retire"} {
		if !strings.Contains(got.stderr, part) {
			t.Errorf("no %q in %q", part, got.stderr)
		}
	}
	if rec := stateOf(t, store, "k"); rec.State != driver.StatePending {
		t.Errorf("state = %v, want pending", rec.State)
	}
	retire := []string{"--json", "store", "retire", "d", "--by", "alice", "--no-zookeeper"}
	soon := idemctl(t, env, retire...)
	until := stateOf(t, store, "k").Started.Add(101 * time.Second).UTC().Format(time.RFC3339)
	if soon.code != cli.ExitFailed || !strings.Contains(soon.stderr, "wait until "+until) {
		t.Errorf("store retire at once = %+v, want that it waits until %s", soon, until)
	}
	if retired, err := store.DomainRetired(t.Context(), "d"); retired || err != nil {
		t.Errorf("Retired = %v, %v, want false", retired, err)
	}
	awaitAge(t, store, 20*time.Millisecond)
	retired := idemctl(t, env, append(retire, "--session-timeout", "2ms")...)
	if retired.code != 0 || retired.stdout != `{"retired":"d","pending":1,"already":false}`+"\n" {
		t.Errorf("store retire = %+v", retired)
	}
	if again := idemctl(t, env, "store", "retire", "d", "--no-zookeeper"); again.code != 0 || !strings.Contains(again.stdout, "already") || !strings.Contains(again.stdout, "1 pending") {
		t.Errorf("store retire again = %+v", again)
	}
	if got := resolveExits(t, env, cli.ExitUsage, "k", "--not-applied"); !strings.Contains(got.stderr, "--no-zookeeper") {
		t.Errorf("without a word on ZooKeeper: %q", got.stderr)
	}
	if rec := stateOf(t, store, "k"); rec.State != driver.StatePending {
		t.Errorf("state = %v, want pending", rec.State)
	}
	resolveExits(t, env, 0, "k", "--not-applied", "--no-zookeeper")
	if rec := stateOf(t, store, "k"); rec.State != driver.StateReleased {
		t.Errorf("state = %v, want released", rec.State)
	}
}

// A decision is about the attempt that was looked at.
func TestResolveOfAnotherAttempt(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	settle(t, store, "k", driver.StateReleased, nil)
	settle(t, store, "k", driver.StateUnknown, nil)
	got := resolveExits(t, env, cli.ExitNothing, "k", "--not-applied", "--attempt", "1")
	if !strings.Contains(got.stderr, "attempt 1 ") || !strings.Contains(got.stderr, "attempt 2 is") {
		t.Errorf("of an attempt that is over: %q", got.stderr)
	}
	if rec := stateOf(t, store, "k"); rec.State != driver.StateUnknown {
		t.Errorf("state = %v, want unknown", rec.State)
	}
	resolveExits(t, env, 0, "k", "--not-applied", "--attempt", "2")
}

// Where services encrypt, a plain response would be worth nothing.
func TestResolveWhereResponsesAreEncrypted(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	ringText := "k1=" + base64.StdEncoding.EncodeToString(make([]byte, sealed.KeySize))
	ring, err := sealed.ParseRing(ringText)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := sealed.New(store, ring)
	if err != nil {
		t.Fatal(err)
	}
	plain := map[string]string{"IDEMCTL_REDIS": server.URL()}
	withKeys := map[string]string{"IDEMCTL_REDIS": server.URL(), "IDEMCTL_RESPONSE_KEYS": ringText}
	otherKeys := map[string]string{"IDEMCTL_REDIS": server.URL(), "IDEMCTL_RESPONSE_KEYS": strings.Replace(ringText, "k1=", "k2=", 1)}

	refused := func(key idem.Key) {
		t.Helper()
		if got := resolveExits(t, plain, cli.ExitFailed, string(key), "--applied", answerFile(t, paid)); !strings.Contains(got.stderr, "give --response-keys") {
			t.Errorf("without keys: %q", got.stderr)
		}
		if rec := stateOf(t, store, key); rec.State != driver.StateUnknown {
			t.Errorf("state = %v, want unknown", rec.State)
		}
	}
	settle(t, encrypted, "by-its-response", driver.StateUnknown, &idem.Response{Status: 503, Body: []byte("b")})
	refused("by-its-response")
	settle(t, store, "by-declaration", driver.StateUnknown, nil)
	if err := store.DeclareSealed(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("by-declaration")
	resolveExits(t, withKeys, 0, "by-declaration", "--applied", answerFile(t, paid))
	rec, err := encrypted.Get(t.Context(), idem.NewKeyID("m", "by-declaration"))
	if err != nil || rec.Response == nil || string(rec.Response.Body) != `{"id":"pay_1"}` {
		t.Fatalf("record = %+v, %v", rec, err)
	}
	resolveExits(t, plain, 0, "by-its-response", "--not-applied") // stores none

	// It is settled, whether its response can be read or not.
	if got := resolveExits(t, otherKeys, cli.ExitNothing, "by-declaration", "--not-applied"); !strings.Contains(got.stderr, "completed") {
		t.Errorf("of a response that cannot be read: %q", got.stderr)
	}
}

// wantResolvedUnder checks a lock service. A running holder is not overruled, and an
// attempt of a dead one is resolved.
func wantResolvedUnder(t *testing.T, env map[string]string, s driver.Store, l driver.Locker) {
	t.Helper()
	lease := beginUnder(t, s, l, "k")
	if got := resolveExits(t, env, cli.ExitNothing, "k", "--not-applied"); !strings.Contains(got.stderr, "is held") {
		t.Errorf("while it runs: %q", got.stderr)
	}
	if rec := stateOf(t, s, "k"); rec.State != driver.StatePending {
		t.Errorf("state = %v, want pending", rec.State)
	}
	domain, compared := lease.Fence().Domain, []string{}
	if env["IDEMCTL_ZOOKEEPER"] == "" {
		compared = []string{"--no-zookeeper"}
	}
	if got := idemctl(t, env, append([]string{"store", "retire", domain}, compared...)...); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "alive") {
		t.Errorf("store retire of the domain = %+v", got)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := resolveExits(t, env, 0, "k", "--applied", answerFile(t, paid)); got.stderr != "" {
		t.Errorf("afterwards it says %q", got.stderr)
	}
	if rec := stateOf(t, s, "k"); rec.State != driver.StateCompleted || rec.Response.Status != 201 {
		t.Errorf("record = %+v", rec)
	}
}

func TestResolveUnderRedisLock(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	wantResolvedUnder(t, map[string]string{"IDEMCTL_REDIS": server.URL()}, store, redisLocker(t, server))
}

func TestResolveUnderZooKeeperLock(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := ensembleEnv(t, server.URL())
	locker := zooKeeperLocker(t, env)
	wantResolvedUnder(t, env, store, locker)

	// Without ZooKeeper a pending attempt is left alone, an unknown one is not.
	lease := beginUnder(t, store, locker, "pending")
	defer lease.ReleaseInBackground()
	rec := stateOf(t, store, "pending")
	for _, ensemble := range []string{"", "127.0.0.1:1"} {
		env["IDEMCTL_ZOOKEEPER"] = ensemble
		if got := resolveExits(t, env, cli.ExitFailed, "pending", "--not-applied"); !strings.Contains(strings.ToLower(got.stderr), "zookeeper") {
			t.Errorf("without ZooKeeper: %q", got.stderr)
		}
	}
	s, err := store.Settle(t.Context(), idem.NewKeyID("m", "pending"), driver.Settlement{Attempt: rec.Attempt, ID: rec.Attempt.Nonce, State: driver.StateUnknown})
	if err != nil || !s.Settled {
		t.Fatalf("Settle = %+v, %v", s, err)
	}
	if got := resolveExits(t, env, 0, "pending", "--not-applied"); !strings.Contains(got.stderr, "no lock was taken") {
		t.Errorf("with an ensemble that is away: %q", got.stderr)
	}
}
