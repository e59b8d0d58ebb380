package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Every connection to a server can be over TLS, and a wrong certificate ends the start with one
// clear line.
func TestSampleOverTLS(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	z, r := testserver.StartSecureZooKeeper(t, ca), testserver.StartSecureRedis(t, ca)
	pg := "postgres://idemkeeper@" + testserver.StartSecurePostgres(t, ca).Addr() + "/postgres"
	trust, cert, key := ca.ClientFiles("payments")
	servers := func(zookeeper, redis, database string) []string {
		return []string{"--zookeeper", zookeeper, "--zookeeper-tls", "--zookeeper-tick", "500ms", "--session-timeout", "4s", "--redis", redis, "--database", database}
	}
	mine := []string{"--tls-ca", trust, "--tls-cert", cert, "--tls-key", key}

	strangers, hisCert, hisKey := testserver.NewAuthority(t).ClientFiles("payments")
	host := func(s string) string { return strings.Replace(s, "127.0.0.1", "localhost", 1) }
	zk, redis := z.SecureAddr()+"/payments", r.SecureURL()
	refused := []struct {
		name, flag, want string
		args             []string
	}{
		{"ZooKeeper of a stranger", "--zookeeper", "unknown authority", append(servers(zk, redis, ""), "--tls-ca", strangers, "--tls-cert", cert, "--tls-key", key)},
		{"a stranger at ZooKeeper", "--zookeeper", "certificate", append(servers(zk, redis, ""), "--tls-ca", trust, "--tls-cert", hisCert, "--tls-key", hisKey)},
		{"ZooKeeper under another name", "--zookeeper", "localhost", append(servers(host(zk), redis, ""), mine...)},
		{"Redis of a stranger", "--redis: ", "unknown authority", []string{"--redis", redis, "--tls-ca", strangers}},
		{"Redis under another name", "--redis: ", "localhost", append([]string{"--redis", host(redis)}, mine...)},
		{"a database of a stranger", "--database: ", "unknown authority", []string{"--database", pg, "--tls-ca", strangers}},
		{"a database under another name", "--database: ", "localhost", append([]string{"--database", host(pg)}, mine...)},
		{"files for nothing", "--tls-ca", "no server is reached over TLS", []string{"--tls-ca", trust}},
		{"TLS to no ZooKeeper", "--zookeeper-tls", "without --zookeeper", []string{"--zookeeper-tls"}},
		{"a missing file", "--tls-ca: ", "no such file", append(servers(zk, redis, ""), "--tls-ca", "missing.pem")},
	}
	started := make([]*process, len(refused))
	for i, tt := range refused {
		started[i] = launch(t, tt.args...)
	}

	p := serve(t, append(servers(z.SecureAddr()+"/payments", r.SecureURL(), pg), mine...)...)
	for range 2 {
		if status, body, err := p.request("POST", "/v1/payments", "k", orderBody); status != 201 || err != nil {
			t.Fatalf("payment over TLS: %d %s %v, want 201", status, body, err)
		}
	}
	p.wantPayments(1)

	idemctl := kit.Binary(t, "./cmd/idemctl")
	ctl := func(args ...string) string {
		out, _ := exec.Command(idemctl, append(append([]string{"--zookeeper", z.SecureAddr() + "/payments", "--zookeeper-tls", "--zookeeper-tick", "500ms",
			"--session-timeout", "4s", "--redis", r.SecureURL()}, mine...), args...)...).CombinedOutput()
		return string(out)
	}
	if got := ctl("record", "show", "--scope", "merchant_demo", "k"); !strings.Contains(got, "completed") {
		t.Errorf("idemctl record show over TLS: %s", got)
	}
	if got := ctl("doctor"); strings.Contains(got, "fail ") || !strings.Contains(got, "standalone") || !strings.Contains(got, "ok    redis-write") {
		t.Errorf("idemctl doctor over TLS:\n%s", got)
	}
	if got, err := exec.Command(idemctl, append([]string{"--database", pg, "store", "migrate"}, mine...)...).CombinedOutput(); err != nil {
		t.Errorf("idemctl store migrate over TLS: %v: %s", err, got)
	}
	p.stops()

	for i, tt := range refused {
		p := started[i]
		if code := p.WaitExit(t).Code; code != 1 {
			t.Errorf("%s: exit code %d, want 1", tt.name, code)
		}
		last := p.Stderr.Tail(2)
		if !strings.Contains(last, tt.flag) || !strings.Contains(last, tt.want) {
			t.Errorf("%s: last line %q, want one that says %q and %q", tt.name, last, tt.flag, tt.want)
		}
	}
}
