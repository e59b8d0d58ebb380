package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/doctor"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// examined is the output of doctor, with the worst finding of each check.
type examined struct {
	ran

	findings []doctor.Finding
}

func examine(t *testing.T, env map[string]string) examined {
	t.Helper()
	got := examined{ran: idemctl(t, env, "--json", "doctor")}
	for line := range strings.Lines(got.stdout) {
		var f doctor.Finding
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&f); err != nil || f.Check == "" || f.Detail == "" || !slices.Contains([]string{"ok", "warn", "fail"}, f.Status) {
			t.Errorf("line %q, %v", line, err)
		}
		got.findings = append(got.findings, f)
	}
	failed := slices.ContainsFunc(got.findings, func(f doctor.Finding) bool { return f.Status == "fail" })
	if failed != (got.code == cli.ExitFailed) || !failed && got.code != cli.ExitDone {
		t.Errorf("exit code %d, failed %v:\n%s%s", got.code, failed, got.stdout, got.stderr)
	}
	return got
}

// wantFinding checks that a check has a line with this status and text.
func (e examined) wantFinding(t *testing.T, status, check, text string) {
	t.Helper()
	if !slices.ContainsFunc(e.findings, func(f doctor.Finding) bool {
		return f.Check == check && f.Status == status && strings.Contains(f.Detail, text)
	}) {
		t.Errorf("no %s of %s with %q in:\n%s", status, check, text, e.stdout)
	}
}

// wantNoFinding checks that only the checks in but have a line with this status.
func (e examined) wantNoFinding(t *testing.T, status string, but ...string) {
	t.Helper()
	for _, f := range e.findings {
		if f.Status == status && !slices.Contains(but, f.Check) {
			t.Errorf("%+v", f)
		}
	}
}

func TestDoctorWithoutFault(t *testing.T) {
	t.Parallel()
	env := ensembleEnv(t, testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes")).URL())
	first := examine(t, env)
	first.wantNoFinding(t, "fail")
	first.wantFinding(t, "warn", "zookeeper-write", "no service has used")
	first.wantFinding(t, "warn", "incarnations", "not compared")
	first.wantFinding(t, "ok", "clock-skew", "3 clocks")
	first.wantFinding(t, "ok", "open-records", "")
	if got := idemctl(t, env, "store", "accept"); got.code != 0 { // writes the witness
		t.Fatal(got)
	}
	got := examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantNoFinding(t, "warn", "zookeeper-servers", "zookeeper-acl")
	for _, check := range []string{"redis", "redis-version", "redis-eviction", "redis-read-only", "redis-persistence", "redis-replicas", "redis-write", "redis-rights", "zookeeper",
		"zookeeper-version", "zookeeper-session", "zookeeper-write", "lock-domain", "clock-skew", "incarnations", "open-records", "record-domains"} {
		got.wantFinding(t, "ok", check, "")
	}
	got.wantFinding(t, "warn", "zookeeper-acl", "/idem/domain")
	got.wantFinding(t, "ok", "clock-skew", "3 clocks")
	if lines := idemctl(t, env, "doctor"); strings.Count(lines.stdout, "\n") != len(got.findings) || !strings.HasPrefix(lines.stdout, "ok    redis ") {
		t.Errorf("text is\n%s", lines.stdout)
	}
}

func TestDoctorOfRedisAlone(t *testing.T) {
	t.Parallel()
	store, server := openStore(t)
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	begin(t, store, "pending")
	settle(t, store, "unknown", driver.StateUnknown, nil)
	got := examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantFinding(t, "warn", "redis-persistence", "no append-only file")
	got.wantFinding(t, "warn", "incarnations", "without ZooKeeper")
	got.wantFinding(t, "warn", "open-records", "1 pending, 0 of them for more than an hour, and 1 unknown")
	got.wantFinding(t, "warn", "record-domains", "d (2)")
	if _, err := server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	got = examine(t, env)
	got.wantFinding(t, "fail", "redis-eviction", "allkeys-lru")
	got.wantFinding(t, "ok", "redis-write", "64 shards")
	if _, err := server.Do("CONFIG", "SET", "replica-read-only", "no"); err != nil {
		t.Fatal(err)
	}
	got = examine(t, env)
	got.wantFinding(t, "fail", "redis-read-only", server.Addr()+" has replica-read-only no")
}

// The doctor tells which right a user of Redis lacks, as the page about users has them.
func TestDoctorOfAUserOfRedis(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/around.md")
	if err != nil {
		t.Fatal(err)
	}
	rights := regexp.MustCompile(`(?m)^ACL SETUSER \S+ on >SECRET ~idem:\* (.*)$`).FindAllStringSubmatch(string(page), -1)
	if len(rights) != 2 {
		t.Fatalf("docs/around.md has %d users of Redis, want one for records and one for locks", len(rights))
	}
	_, server := openStore(t)
	records, locks := rights[0][1], rights[1][1]
	for name, tt := range map[string]struct{ rights, status, detail string }{
		"both":                  {records + " " + locks, "ok", "take locks in Redis"},
		"records":               {records, "warn", "take no locks in Redis"},
		"records without zadd":  {records + " -zadd", "fail", "zadd"},
		"records without lpush": {records + " -lpush", "fail", "lpush"},
	} {
		user := strings.ReplaceAll(name, " ", "-")
		rule := append([]string{"ACL", "SETUSER", user, "on", ">secret", "~idem:*"}, strings.Fields(tt.rights)...)
		if _, err := server.Do(rule...); err != nil {
			t.Fatal(err)
		}
		url := strings.Replace(server.URL(), "redis://", "redis://"+user+":secret@", 1)
		got := examine(t, map[string]string{"IDEMCTL_REDIS": url})
		got.wantFinding(t, tt.status, "redis-rights", tt.detail)
		if strings.Contains(got.stdout, "secret") {
			t.Errorf("%s: the password is in\n%s", name, got.stdout)
		}
	}
	got := examine(t, ensembleEnv(t, strings.Replace(server.URL(), "redis://", "redis://records:secret@", 1)))
	got.wantFinding(t, "ok", "redis-rights", "keep records")
}

func TestDoctorOfALostRedis(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	env := ensembleEnv(t, server.URL())
	if got := idemctl(t, env, "store", "accept"); got.code != 0 {
		t.Fatal(got)
	}
	wipe(t, server)
	examine(t, env).wantFinding(t, "fail", "incarnations", "64 of 64 shards")
}

// Mute servers and a missing one get a line each, in time and without passwords.
func TestDoctorOfServersThatDoNotAnswer(t *testing.T) {
	redis, zk := testserver.StartRedis(t), testserver.SharedZooKeeper(t)[0]
	proxy := testserver.StartTCPProxy(t, redis.Addr())
	zkProxy := testserver.StartTCPProxy(t, zk)
	proxy.BlackHole(testserver.ToClient)
	zkProxy.BlackHole(testserver.ToClient)
	env := ensembleEnv(t, "redis://:secret@"+proxy.Addr())
	env["IDEMCTL_ZOOKEEPER"] = zkProxy.Addr() + ",127.0.0.1:1"
	start := time.Now()
	got := examine(t, env)
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	got.wantFinding(t, "fail", "redis", proxy.Addr())
	got.wantFinding(t, "fail", "zookeeper", zkProxy.Addr())
	got.wantFinding(t, "fail", "zookeeper", "127.0.0.1:1")
	if strings.Contains(got.stdout+got.stderr, "secret") || len(got.findings) != 4 {
		t.Errorf("findings are\n%s%s", got.stdout, got.stderr)
	}
	// The others are looked at all the same.
	env["IDEMCTL_ZOOKEEPER"] = zk + ",127.0.0.1:1" + testserver.Chroot(t)
	got = examine(t, env)
	got.wantFinding(t, "warn", "zookeeper-write", "no service has used")
	got.wantFinding(t, "warn", "zookeeper-servers", "2 named")
}

func TestDoctorOfSentinels(t *testing.T) {
	t.Parallel()
	s := testserver.StartSentinel(t, 1)
	addrs := []string{s.Sentinels()[0].Addr(), "127.0.0.1:1"}
	got := examine(t, map[string]string{"IDEMCTL_REDIS": "redis+sentinel://" + strings.Join(addrs, ",") + "/" + testserver.SentinelMaster})
	got.wantFinding(t, "ok", "sentinel", s.Primary().Addr())
	got.wantFinding(t, "fail", "sentinel", "127.0.0.1:1")
	got.wantFinding(t, "ok", "redis", "the sentinels' primary")
	got.wantFinding(t, "ok", "redis-write", "")
	// The primary calls its replica online at the first word from it, a second later.
	inStep := func(f doctor.Finding) bool {
		return f.Status == "ok" && strings.Contains(f.Detail, "has 1, 0 of them not online")
	}
	for end := time.Now().Add(time.Minute); !slices.ContainsFunc(got.findings, inStep); {
		if time.Now().After(end) {
			t.Fatalf("the replica is not online:\n%s", got.stdout)
		}
		got = examine(t, map[string]string{"IDEMCTL_REDIS": "redis+sentinel://" + addrs[0] + "/" + testserver.SentinelMaster})
	}

	// Its replica is the next primary.
	replica := s.Replica()
	got.wantFinding(t, "ok", "redis", replica.Addr()+" answers and is a replica")
	got.wantFinding(t, "ok", "redis-eviction", replica.Addr()+", a replica")
	got.wantFinding(t, "ok", "clock-skew", "3 clocks")
	if _, err := replica.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"IDEMCTL_REDIS": "redis+sentinel://" + addrs[0] + "/" + testserver.SentinelMaster}
	got = examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantFinding(t, "warn", "redis-eviction", replica.Addr()+", a replica, has maxmemory-policy allkeys-lru")
	replica.Kill()
	got = examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantFinding(t, "warn", "redis", replica.Addr())
}

func TestDoctorOfACluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
	replica := c.Replicas()[0]
	if _, err := replica.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"IDEMCTL_REDIS": "redis://" + strings.Join(c.Addrs()[:3], ",redis://")}
	got := examine(t, env)
	// A node lists replicas of which it has heard that they have data.
	for end := time.Now().Add(time.Minute); strings.Count(got.stdout, "answers and is a replica") < 3; got = examine(t, env) {
		if time.Now().After(end) {
			t.Fatalf("the replicas are not known:\n%s", got.stdout)
		}
	}
	got.wantNoFinding(t, "fail")
	for _, addr := range c.Addrs()[:3] {
		got.wantFinding(t, "ok", "redis", addr)
		got.wantFinding(t, "ok", "redis-eviction", addr)
	}
	got.wantFinding(t, "warn", "redis-eviction", replica.Addr()+", a replica, has maxmemory-policy allkeys-lru")
	got.wantFinding(t, "ok", "redis-eviction", c.Replicas()[1].Addr()+", a replica")
	got.wantFinding(t, "ok", "clock-skew", "7 clocks")
	c.Nodes()[1].Kill()
	got = examine(t, env)
	got.wantFinding(t, "fail", "redis", c.Addrs()[1])
	got.wantFinding(t, "ok", "redis", c.Addrs()[2])
}

// Doctor makes no znodes and no incarnations on unused servers.
func TestDoctorLeavesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	env := ensembleEnv(t, server.URL())
	examine(t, env)
	if keys, err := server.Do("KEYS", "*:incarnation"); err != nil || len(keys) != 0 {
		t.Errorf("incarnations that doctor made: %q, %v", keys, err)
	}
	// The next doctor finds no chroot either.
	_, chroot, _ := strings.Cut(env["IDEMCTL_ZOOKEEPER"], "/")
	examine(t, env).wantFinding(t, "warn", "zookeeper-write", "there is no /"+chroot+", ")
	// A look at records makes no incarnations either.
	for _, args := range [][]string{{"record", "list"}, {"record", "show", "--scope", "m", "k"}} {
		idemctl(t, map[string]string{"IDEMCTL_REDIS": server.URL()}, args...)
		if keys, err := server.Do("KEYS", "*:incarnation"); err != nil || len(keys) != 0 {
			t.Errorf("incarnations that %q made: %d, %v", args, len(keys), err)
		}
	}
}

// An ensemble of three whose znodes are for the services alone, and a Redis that keeps what it has: doctor looks as
// one of the services, and has nothing to complain of.
func TestDoctorWithCredentials(t *testing.T) {
	t.Parallel()
	env := ensembleEnv(t, testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes")).URL())
	env["IDEMCTL_ZOOKEEPER"] = testserver.StartEnsemble(t, 3).ConnectString() + testserver.Chroot(t)
	env["IDEMCTL_ZOOKEEPER_AUTH"] = "services:secret"
	if got := idemctl(t, env, "store", "accept"); got.code != 0 {
		t.Fatal(got)
	}
	got := examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantNoFinding(t, "warn")
	got.wantFinding(t, "ok", "clock-skew", "3 clocks")
	delete(env, "IDEMCTL_ZOOKEEPER_AUTH")
	got = examine(t, env)
	got.wantNoFinding(t, "fail")
	got.wantFinding(t, "warn", "zookeeper-write", "--zookeeper-auth")
}
