package testserver_test

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestRedis_CutOffReplicaMissesWrites(t *testing.T) {
	t.Parallel()
	s := testserver.StartSentinel(t, 1)
	if err := s.Replica().CutOff(s.Primary()); err != nil {
		t.Fatalf("CutOff = %v", err)
	}
	if _, err := s.Primary().Do("SET", "k", "v"); err != nil {
		t.Fatalf("SET = %v", err)
	}
	if got, err := s.Replica().Do("GET", "k"); err != nil || got[0] != "" {
		t.Errorf("GET k of the replica that is cut off = %q, %v, want nothing", got, err)
	}
	if err := s.Replica().Rejoin(); err != nil {
		t.Fatalf("Rejoin = %v", err)
	}
	if err := s.Primary().AwaitReplica(s.Replica()); err != nil {
		t.Fatalf("AwaitReplica = %v", err)
	}
	if got, err := s.Replica().Do("GET", "k"); err != nil || got[0] != "v" {
		t.Errorf("GET k of the replica that is back = %q, %v, want v", got, err)
	}
}

func TestRedisCluster_ReplicaTakesOver(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
	master, replica := c.Nodes()[0], c.Replicas()[0]
	node, err := c.NodeFor("k3") // slot 4576
	if err != nil || node != master {
		t.Fatalf("NodeFor = %v, %v, want the first master", node.Addr(), err)
	}
	if _, err := master.Do("SET", "k3", "v"); err != nil {
		t.Fatalf("SET = %v", err)
	}
	if err := master.AwaitReplica(replica); err != nil {
		t.Fatalf("AwaitReplica = %v", err)
	}
	master.Kill()
	if err := replica.TakeOver(); err != nil {
		t.Fatalf("TakeOver = %v", err)
	}
	if err := c.AwaitComplete(); err != nil {
		t.Fatalf("AwaitComplete = %v", err)
	}
	if got, err := replica.Do("GET", "k3"); err != nil || got[0] != "v" {
		t.Errorf("GET k3 = %q, %v, want v", got, err)
	}
}

func TestRedisCluster_SlotMovesWithItsKeys(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
	old, replica, err := c.Owner("k3")
	if err != nil || old != c.Nodes()[0] || replica != c.Replicas()[0] {
		t.Fatalf("Owner = %v, %v, %v, want the first master and its replica", old, replica, err)
	}
	if _, err := old.Do("SET", "k3", "v"); err != nil {
		t.Fatalf("SET = %v", err)
	}
	steps := 0
	if err := c.MoveSlot("k3", 1, func() { steps++ }); err != nil || steps != 3 {
		t.Fatalf("MoveSlot = %v after %d steps, want 3", err, steps)
	}
	owner, _, err := c.Owner("k3")
	if err != nil || owner != c.Nodes()[2] {
		t.Fatalf("Owner after the move = %v, %v, want the third master", owner, err)
	}
	if got, err := owner.Do("GET", "k3"); err != nil || got[0] != "v" {
		t.Errorf("GET k3 = %q, %v, want v", got, err)
	}
}
