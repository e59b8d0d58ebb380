package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The call that told the time of the server was long on its way there. A combined call that comes late begins nothing all the same.
func TestLastMomentAfterASlowCall(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client)
	m.Elapse(noteEvery)
	slow := &hook{at: 1, before: func() { m.Elapse(freshness) }}
	client.AddHook(slow)
	id, req := newAttempt(driver.ClientKey)
	if _, err := s.Get(t.Context(), id); err != nil || slow.n.Load() != 1 {
		t.Fatalf("Get(%v) = %v, with %d calls, want one call", id, err, slow.n.Load())
	}
	begin := func(late time.Duration) bool {
		t.Helper()
		client.AddHook(&hook{at: 1, before: func() { m.Elapse(time.Minute + late) }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		res, err := s.BeginLocked(ctx, id, req, driver.OfferedLock{Owner: strings.Repeat("o", 32), Nonce: req.Nonce, TTL: time.Hour})
		if err != nil {
			t.Fatalf("BeginLocked(%v) = %v", id, err)
		}
		return res.Begun
	}
	if begin(2 * lateBy) {
		t.Errorf("a call %v after its caller has gone has begun an attempt", 2*lateBy)
	}
	if !begin(-lateBy) {
		t.Error("a call in time has begun nothing")
	}
}
