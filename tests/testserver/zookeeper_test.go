package testserver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestZooKeeper_ResumeAnswersWhatPauseDelayed(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	conn := connect(t, 20*time.Second, z.Hosts()...)
	z.Pause()
	done := make(chan error, 1)
	go func() { done <- create(conn, "/late") }()
	select {
	case err := <-done:
		t.Fatalf("Create on a paused server = %v, want none", err)
	case <-time.After(300 * time.Millisecond): // the absence of an answer can only be waited for
	}
	z.Resume()
	if err := <-done; err != nil {
		t.Fatalf("Create after Resume = %v", err)
	}
}

func TestZooKeeper_OptionsReachTheServer(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t,
		nil,
		testserver.WithTickTime(200*time.Millisecond),
		testserver.WithConfig("maxSessionTimeout=7000"),
		testserver.WithJVMArgs("-Dzookeeper.extendedTypesEnabled=true"),
	)
	conf, err := z.Command("conf")
	if err != nil {
		t.Fatalf("Command(conf) = %v", err)
	}
	for _, want := range []string{"tickTime=200", "minSessionTimeout=400", "maxSessionTimeout=7000"} {
		if !strings.Contains(conf, want) {
			t.Errorf("conf has no %s:\n%s", want, conf)
		}
	}
	conn := connect(t, 5*time.Second, z.Addr())
	if _, err := conn.CreateTTL("/ttl", nil, zk.FlagTTL, zk.WorldACL(zk.PermAll), time.Hour); err != nil {
		t.Errorf("CreateTTL = %v", err)
	}
}

func TestKillSession_DeletesEphemeralsAndExpiresTheClient(t *testing.T) {
	t.Parallel()
	hosts := testserver.SharedZooKeeper(t)
	p := testserver.StartZooKeeperProxy(t, hosts[0])
	conn := connect(t, 10*time.Second, p.Addr())
	path := testserver.Chroot(t)
	if _, err := conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("Create = %v", err)
	}
	id, passwd := p.Session()
	if id != conn.SessionID() {
		t.Fatalf("Session() = %#x, want %#x", id, conn.SessionID())
	}
	if err := testserver.KillSession(hosts[0], id, passwd); err != nil {
		t.Fatalf("KillSession = %v", err)
	}
	other := connect(t, 10*time.Second, hosts...)
	mustExist(t, other, path, false)
	eventually(t, "new session", func() bool { return conn.SessionID() != id })
	if err := testserver.KillSession(hosts[0], id, passwd); err == nil {
		t.Error("KillSession of a dead session = nil, want an error")
	}
}

func TestSharedZooKeeper_IsOneServerWithSeparatePaths(t *testing.T) {
	t.Parallel()
	hosts := testserver.SharedZooKeeper(t)
	if again := testserver.SharedZooKeeper(t); again[0] != hosts[0] {
		t.Fatalf("SharedZooKeeper = %v, then %v", hosts, again)
	}
	conn := connect(t, 5*time.Second, hosts...)
	a, b := testserver.Chroot(t), testserver.Chroot(t)
	if a == b {
		t.Fatalf("Chroot twice = %q", a)
	}
	if err := errors.Join(create(conn, a), create(conn, b)); err != nil {
		t.Fatalf("Create = %v", err)
	}
}
