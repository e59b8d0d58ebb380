package redisserver

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// The client of a cluster calls each primary on a goroutine of its own, where a panic of a hook would end
// the process.
func TestPanicOfACallToEachPrimary(t *testing.T) {
	t.Parallel()
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) {
		return []goredis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []goredis.ClusterNode{{Addr: "127.0.0.1:1"}}},
			{Start: 8192, End: 16383, Nodes: []goredis.ClusterNode{{Addr: "127.0.0.1:2"}}},
		}, nil
	}})
	defer cluster.Close()
	errOther := errors.New("the other one")
	var calls atomic.Int32
	err := EachPrimary(t.Context(), cluster, func(context.Context, *goredis.Client) error {
		if calls.Add(1) == 1 {
			panic("hook")
		}
		return errOther
	})
	if !errors.Is(err, errOther) || !strings.Contains(err.Error(), "panicked: hook") {
		t.Errorf("EachPrimary() = %v, want the panic and %v", err, errOther)
	}
}
