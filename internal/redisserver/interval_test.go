package redisserver_test

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

func TestIntervalLetsOneThrough(t *testing.T) {
	t.Parallel()
	now := time.Now()
	i := redisserver.NewInterval(time.Second, func() time.Time { return now })
	want := func(when string, want ...bool) {
		t.Helper()
		for n, w := range want {
			if got := i.Due(); got != w {
				t.Errorf("Due() %s, call %d = %v, want %v", when, n+1, got, w)
			}
		}
	}
	want("at the start", false)
	now = now.Add(time.Second)
	want("after an interval", true, false)
	i.End()
	want("after End", true, false)
}
