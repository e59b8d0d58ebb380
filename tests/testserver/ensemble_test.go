package testserver_test

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestEnsemble_ElectsAgainWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	conn := connect(t, 20*time.Second, e.Hosts()...)
	if err := create(conn, "/before"); err != nil {
		t.Fatalf("Create = %v", err)
	}
	old := e.Leader()
	if n := len(e.Followers()); n != 2 {
		t.Fatalf("%d followers, want 2", n)
	}
	old.Kill()
	leader := e.Leader()
	if leader == old {
		t.Fatal("a killed member leads")
	}
	fresh := connect(t, 20*time.Second, leader.Hosts()...)
	mustExist(t, fresh, "/before", true)
	if err := create(fresh, "/after"); err != nil {
		t.Fatalf("Create without the old leader = %v", err)
	}

	old.Restart()
	if mode, err := old.Mode(); err != nil || mode != "follower" {
		t.Fatalf("Mode() of the old leader = %q, %v, want follower", mode, err)
	}

	// A paused leader is deposed, too, and comes back as a follower.
	leader.Pause()
	if e.Leader() == leader {
		t.Fatal("a paused member leads")
	}
	leader.Resume()
	eventually(t, "second follower", func() bool { return len(e.Followers()) == 2 })

	// Without a quorum nobody leads; all come back with their data.
	for _, z := range e.Members() {
		z.Kill()
	}
	e.RestartAll()
	e.Leader()
	mustExist(t, connect(t, 20*time.Second, e.Hosts()...), "/after", true)
}
