package faults

import (
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The primary dies with what its replica has not received, and the replica is
// promoted. Where replicas have to acknowledge an attempt, it did not start;
// with durable markers it is known all the same. Nothing is paid twice.
func TestPromotedReplicaThatMissedTheAttempt(t *testing.T) {
	t.Parallel()
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
			s := kit.NewSystem(t)
			sentinel := testserver.StartSentinel(t, 1)
			in := s.Start("one", kit.WithFlags(append([]string{"--redis", "redis+sentinel://" + strings.Join(sentinel.Addrs(), ",") + "/" + testserver.SentinelMaster}, tt.flags...)...))
			before := kit.PayBefore(t, in)
			old, promoted := sentinel.Primary(), sentinel.Replica()
			if err := errors.Join(old.AwaitReplica(promoted), promoted.CutOff(old)); err != nil {
				t.Fatal(err)
			}
			for _, via := range kit.Transports {
				key := kit.KeyFor(via, "missed")
				a := in.Client(via).Pay(key, kit.Amount, key)
				if tt.paid {
					kit.WantPayment(t, "payment", a, kit.WantOnePayment(t, in.Client(via), key))
					continue
				}
				kit.WantRefusal(t, "payment", a, tt.code)
				kit.WantNoPayment(t, in.Client(via), key)
			}
			old.Kill()
			if err := sentinel.AwaitPrimary(promoted); err != nil {
				t.Fatal(err)
			}
			if !tt.paid { // with no replica nothing starts
				kit.WantRefusal(t, "retry", in.HTTPClient().Pay(kit.KeyFor(kit.Transports[0], "missed"), kit.Amount, kit.KeyFor(kit.Transports[0], "missed")), "unavailable")
				old.Restart() // it comes back as a replica
			}
			for _, via := range kit.Transports {
				c, key := in.Client(via), kit.KeyFor(via, "missed")
				a := c.PayWithRetries(key, kit.Amount, key)
				p := kit.WantOnePayment(t, c, key)
				if tt.paid {
					kit.WantRefusal(t, "retry", a, "result-unavailable")
				} else {
					kit.WantPayment(t, "retry", a, p)
				}
				kit.WantReplay(t, "repeat of what the replica had", c.PayWithRetries(kit.KeyFor(via, "before"), kit.Amount, kit.KeyFor(via, "before")), before[via])
			}
		})
	}
}
