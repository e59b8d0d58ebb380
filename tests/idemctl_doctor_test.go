package tests

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// checkLine is what idemctl --json doctor writes of a check.
type checkLine struct{ Check, Status, Detail string }

// doctor runs the checks and wants its exit code to follow from them.
func (s *system) doctor(args ...string) []checkLine {
	s.t.Helper()
	start := time.Now()
	out, code := s.outputOf(append([]string{"--json", "doctor"}, args...)...)
	if took := time.Since(start); took > 15*time.Second {
		s.t.Errorf("doctor took %v, want 15 s at most", took)
	}
	var lines []checkLine
	want := 0
	for line := range strings.Lines(out) {
		var c checkLine
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			s.t.Fatalf("doctor printed %q: %v", line, err)
		}
		if c.Status == "fail" {
			want = 1
		}
		lines = append(lines, c)
	}
	if code != want || len(lines) == 0 {
		s.t.Errorf("doctor: exit code %d, want %d:\n%s", code, want, out)
	}
	return lines
}

// hasCheck reports whether a check has a status and a text.
func hasCheck(lines []checkLine, status, check, text string) bool {
	return slices.ContainsFunc(lines, func(c checkLine) bool {
		return c.Status == status && c.Check == check && strings.Contains(c.Detail, text)
	})
}

func (s *system) wantCheck(status, check, text string, args ...string) {
	s.t.Helper()
	if lines := s.doctor(args...); !hasCheck(lines, status, check, text) {
		s.t.Errorf("no %s of %s with %q in %v", status, check, text, lines)
	}
}

// An ensemble of three, whose znodes are for the instances alone, and a Redis
// that keeps what it has: nothing to complain of.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, testserver.StartEnsemble(t, 3).Hosts())
	s.redis = testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes"))
	in := s.start("one")
	const key = "healthy"
	wantPaidOnce(t, "payment", in.httpClient(), key)
	if lines := s.doctor(); !hasCheck(lines, "warn", "zookeeper-acl", s.chroot+"/lock") {
		t.Errorf("open ACLs are not told: %v", lines)
	}
	s.closeToOthers(s.zooKeeper(), s.chroot)
	for _, c := range s.doctor() {
		if c.Status != "ok" {
			t.Errorf("%+v, want ok", c)
		}
	}
}

// closeToOthers gives all that is below a znode to whoever is on this machine.
func (s *system) closeToOthers(conn *zk.Conn, path string) {
	s.t.Helper()
	acl := []zk.ACL{{Perms: zk.PermAll, Scheme: "ip", ID: "127.0.0.1"}}
	if _, err := conn.SetACL(path, acl, -1); err != nil {
		s.t.Fatalf("SetACL(%q) = %v", path, err)
	}
	for _, child := range s.children(conn, path) {
		if child != "members" || path == s.chroot+"/idem" {
			if strings.HasSuffix(path, "/members") {
				continue // they come and go
			}
			s.closeToOthers(conn, path+"/"+child)
		}
	}
}

// What makes the services refuse, or lose what they know, fails.
func TestDoctorFails(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	const key = "before"
	wantPaidOnce(t, "payment", in.httpClient(), key)
	if lines := s.doctor(); !hasCheck(lines, "ok", "incarnations", "") || !hasCheck(lines, "warn", "zookeeper-servers", "1 named") {
		t.Errorf("doctor says %v", lines)
	}
	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	s.wantCheck("fail", "incarnations", "64 shards")
	if _, err := s.redis.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	s.wantCheck("fail", "redis-eviction", "allkeys-lru")
	s.wantCheck("fail", "redis", "refused", "--redis", "redis://:secret@127.0.0.1:1")
	s.wantCheck("fail", "zookeeper", "127.0.0.1:1", "--zookeeper", "127.0.0.1:1")
	hole := s.redisProxy()
	hole.BlackHole(testserver.Both)
	s.wantCheck("fail", "redis", hole.Addr(), "--redis", "redis://"+hole.Addr())
	ensemble := s.zooKeeperProxy()
	ensemble.BlackHole(testserver.Both)
	s.wantCheck("fail", "zookeeper", ensemble.Addr(), "--zookeeper", ensemble.Addr())
}

// Outcomes that wait for somebody are told of.
func TestDoctorWarnsOfOpenRecords(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	const key = "waits"
	v.httpClient().startPay(key, amount, key)
	v.waitLog(t, "at=before-ledger", logOp(key))
	v.kill(t)
	wantRefusal(t, "retry", other.httpClient().payWithRetries(key, amount, key), "outcome-unknown")
	s.wantCheck("warn", "open-records", "0 pending, 0 of them for more than an hour, and 1 unknown")
}

// A token of the command line is one of the service's.
func TestIdemctlIssuesTokens(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	out, code := s.outputOf("token", "issue", "--scope", "merchant_demo", "--ttl", "5m")
	token := strings.TrimSuffix(out, "\n")
	if code != 0 || strings.ContainsAny(token, " \n") {
		t.Fatalf("token issue = %q, exit code %d, want a token", out, code)
	}
	forEachTransport(t, func(t *testing.T, via transport) {
		wantRefusal(t, "trade of another merchant", in.client(via).as("test").trade(token, amount, "issued"), "token-unknown")
	})
	a := in.httpClient().tradeWithRetries(token, amount, "issued")
	wantPayment(t, "trade", a, wantOnePayment(t, in.httpClient(), "issued"))
}
