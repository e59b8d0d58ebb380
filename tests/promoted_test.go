package tests

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The primary dies with what its replica has not received, and the replica is
// promoted. Where replicas have to acknowledge an attempt, it did not start;
// with durable markers it is known all the same. Nothing is paid twice.
func TestPromotedReplicaThatMissedTheAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		flags []string
		paid  bool // before the primary dies
		code  string
	}{
		"replicas have to acknowledge": {[]string{"--redis-replicas", "1"}, false, "unavailable"},
		"durable markers":              {[]string{"--durable-markers"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			sentinel := testserver.StartSentinel(t, 1)
			in := s.start("one", withFlags(append([]string{"--redis", "redis+sentinel://" + strings.Join(sentinel.Addrs(), ",") + "/" + testserver.SentinelMaster}, tt.flags...)...))
			before := payBefore(t, in)
			old, promoted := sentinel.Primary(), sentinel.Replica()
			if err := errors.Join(old.AwaitReplica(promoted), promoted.CutOff(old)); err != nil {
				t.Fatal(err)
			}
			for _, via := range transports {
				key := keyFor(via, "missed")
				a := in.client(via).pay(key, amount, key)
				if tt.paid {
					wantPayment(t, "payment", a, wantOnePayment(t, in.client(via), key))
					continue
				}
				wantRefusal(t, "payment", a, tt.code)
				wantNoPayment(t, in.client(via), key)
			}
			old.Kill()
			if err := sentinel.AwaitPrimary(promoted); err != nil {
				t.Fatal(err)
			}
			if !tt.paid { // with no replica nothing starts
				wantRefusal(t, "retry", in.httpClient().pay(keyFor(transports[0], "missed"), amount, keyFor(transports[0], "missed")), "unavailable")
				old.Restart() // it comes back as a replica
			}
			for _, via := range transports {
				c, key := in.client(via), keyFor(via, "missed")
				a := c.payWithRetries(key, amount, key)
				p := wantOnePayment(t, c, key)
				if tt.paid {
					wantRefusal(t, "retry", a, "result-unavailable")
				} else {
					wantPayment(t, "retry", a, p)
				}
				wantReplay(t, "repeat of what the replica had", c.payWithRetries(keyFor(via, "before"), amount, keyFor(via, "before")), before[via])
			}
		})
	}
}
