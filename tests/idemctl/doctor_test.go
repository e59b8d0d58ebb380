package idemctl

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// checkLine is what idemctl --json doctor writes of a check.
type checkLine struct{ Check, Status, Detail string }

// doctor runs the checks and wants its exit code to follow from them.
func doctor(s *kit.System) []checkLine {
	s.T.Helper()
	start := time.Now()
	out, code := s.OutputOf("--json", "doctor")
	if took := time.Since(start); took > 15*time.Second {
		s.T.Errorf("doctor took %v, want 15 s at most", took)
	}
	var lines []checkLine
	want := 0
	for line := range strings.Lines(out) {
		var c checkLine
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			s.T.Fatalf("doctor printed %q: %v", line, err)
		}
		if c.Status == "fail" {
			want = 1
		}
		lines = append(lines, c)
	}
	if code != want || len(lines) == 0 {
		s.T.Errorf("doctor: exit code %d, want %d:\n%s", code, want, out)
	}
	return lines
}

// hasCheck reports whether a check has a status and a text.
func hasCheck(lines []checkLine, status, check, text string) bool {
	return slices.ContainsFunc(lines, func(c checkLine) bool {
		return c.Status == status && c.Check == check && strings.Contains(c.Detail, text)
	})
}

// An ensemble of three, whose znodes are for the instances alone, and a Redis
// that keeps what it has: nothing to complain of.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	s := kit.NewSystemOn(t, testserver.StartEnsemble(t, 3).Hosts())
	s.Redis = testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes"))
	in := s.Start("one")
	const key = "healthy"
	kit.WantPaidOnce(t, "payment", in.HTTPClient(), key)
	if lines := doctor(s); !hasCheck(lines, "warn", "zookeeper-acl", s.Chroot+"/lock") {
		t.Errorf("open ACLs are not told: %v", lines)
	}
	closeToOthers(s, s.ZooKeeper(), s.Chroot)
	for _, c := range doctor(s) {
		if c.Status != "ok" {
			t.Errorf("%+v, want ok", c)
		}
	}
}

// closeToOthers gives all that is below a znode to whoever is on this machine.
func closeToOthers(s *kit.System, conn *zk.Conn, path string) {
	s.T.Helper()
	acl := []zk.ACL{{Perms: zk.PermAll, Scheme: "ip", ID: "127.0.0.1"}}
	if _, err := conn.SetACL(path, acl, -1); err != nil {
		s.T.Fatalf("SetACL(%q) = %v", path, err)
	}
	for _, child := range s.Children(conn, path) {
		if child != "members" || path == s.Chroot+"/idem" {
			if strings.HasSuffix(path, "/members") {
				continue // they come and go
			}
			closeToOthers(s, conn, path+"/"+child)
		}
	}
}

// A token of the command line is one of the service's.
func TestIdemctlIssuesTokens(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one")
	out, code := s.OutputOf("token", "issue", "--scope", "merchant_demo", "--ttl", "5m")
	token := strings.TrimSuffix(out, "\n")
	if code != 0 || strings.ContainsAny(token, " \n") {
		t.Fatalf("token issue = %q, exit code %d, want a token", out, code)
	}
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		kit.WantRefusal(t, "trade of another merchant", in.Client(via).As("test").Trade(token, kit.Amount, "issued"), "token-unknown")
	})
	a := in.HTTPClient().TradeWithRetries(token, kit.Amount, "issued")
	kit.WantPayment(t, "trade", a, kit.WantOnePayment(t, in.HTTPClient(), "issued"))
}
