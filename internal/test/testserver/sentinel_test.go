package testserver_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestSentinel_PromotesTheReplica(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("sentinels %d", n), func(t *testing.T) {
			t.Parallel()
			s := testserver.StartSentinel(t, n)
			cl := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: testserver.SentinelMaster, SentinelAddrs: s.Addrs(),
			})
			t.Cleanup(func() { cl.Close() })
			if err := s.AwaitPrimary(s.Primary()); err != nil {
				t.Fatalf("AwaitPrimary before = %v", err)
			}
			if err := cl.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatalf("SET = %v", err)
			}
			if err := cl.Wait(t.Context(), 1, 0).Err(); err != nil {
				t.Fatalf("WAIT = %v", err)
			}
			s.Primary().Kill()
			if err := s.AwaitPrimary(s.Replica()); err != nil {
				t.Fatalf("AwaitPrimary after = %v", err)
			}
			eventually(t, "client at the new primary", func() bool {
				return cl.Set(t.Context(), "k2", "v", 0).Err() == nil
			})
			if got, err := s.Replica().Do("GET", "k"); err != nil || got[0] != "v" {
				t.Fatalf("GET k = %v, %v, want v", got, err)
			}
			s.Primary().Restart()
			eventually(t, "old primary as replica", func() bool {
				role, err := s.Primary().Do("ROLE")
				return err == nil && role[0] == "slave"
			})
		})
	}
}
