package clients

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// TestRefusals makes a live system refuse for every reason that the sample can
// produce, over each transport, and compares what the client sees with the
// table (see problems).
func TestRefusals(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
	type refusal struct {
		what   string
		via    kit.Transport
		answer kit.Answer
		code   string
	}
	var rows []refusal
	add := func(via kit.Transport, what string, a kit.Answer, code string) {
		rows = append(rows, refusal{what, via, a, code})
	}
	good := kit.FromAlice(kit.Amount, "refused")
	for _, via := range kit.Transports {
		c := other.Client(via)
		send := func(r kit.Route, o kit.Order, keys ...string) kit.Answer { return c.Send(t.Context(), r, o, keys...) }
		token, paid := c.IssueToken(t), kit.KeyFor(via, "paid")
		kit.WantPaidOnce(t, "payment", c, paid)
		add(via, "no key", send(kit.ToPayments, good), "key-missing")
		add(via, "no token", send(kit.ToTrades, good), "key-missing")
		add(via, "list of keys", send(kit.ToPayments, good, "a, b"), "key-invalid")
		add(via, "two keys", send(kit.ToPayments, good, "a", "b"), "key-invalid")
		add(via, "bad body", send(kit.ToPayments, kit.Order{}, "bad-body"), "body-invalid")
		add(via, "junk token", send(kit.ToTrades, good, "junk"), "token-unknown")
		add(via, "token of another", c.As("test").Trade(token, kit.Amount, "refused"), "token-unknown")
		add(via, "token as client key", send(kit.ToPayments, good, token), "key-reused")
		add(via, "other request", c.Pay(paid, kit.Amount+1, paid), "key-reused")
		add(via, "body over 1 MiB", c.Pay("large", kit.Amount, strings.Repeat("n", 1<<20)), "body-too-large")
	}

	all := v.StartPaymentsUpTo(t, "unknown", "at=before-ledger")
	for _, r := range all {
		c := other.Client(r.Via)
		add(r.Via, "running elsewhere", kit.WantInProgress(t, "running elsewhere", c, r.Key), "in-progress")
		add(r.Via, "running here", kit.WantInProgress(t, "running here", v.Client(r.Via), r.Key), "in-progress")
		add(r.Via, "other request, running elsewhere", c.Pay(r.Key, kit.Amount+1, r.Key), "key-reused")
		add(r.Via, "other request, running here", v.Client(r.Via).Pay(r.Key, kit.Amount+1, r.Key), "key-reused")
	}
	v.Kill(t)
	for _, r := range all {
		add(r.Via, "interrupted", other.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key), "outcome-unknown")
	}

	// The holder is cut off from ZooKeeper for longer than it can trust its lease.
	p := s.ZooKeeperProxy()
	cutOff := s.Start("the one cut off", kit.ThroughZooKeeper(p), kit.WithLatency(2*kit.WaitLimit))
	lost := cutOff.StartPaymentsUpTo(t, "lost", "at=before-ledger")
	kit.Outages[0].Begin(p)
	for _, r := range lost {
		add(r.Via, "cut off while running", <-r.Done, "ownership-lost")
		add(r.Via, "ZooKeeper down", cutOff.Client(r.Via).Pay("fresh", kit.Amount, "fresh"), "unavailable")
	}

	if _, err := s.Redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	for _, via := range kit.Transports {
		add(via, "Redis flushed", other.Client(via).Pay("fresh", kit.Amount, "fresh"), "store-lost")
	}
	s.Redis.Kill()
	for _, via := range kit.Transports {
		add(via, "Redis down", other.Client(via).Pay("fresh", kit.Amount, "fresh"), "unavailable")
	}

	for _, r := range rows {
		t.Run(r.via.String()+"/"+r.what, func(t *testing.T) {
			kit.WantRefusal(t, r.what, r.answer, r.code)
			if r.answer.Replayed {
				t.Errorf("%s is marked as replayed", r.what)
			}
		})
	}
	for _, via := range kit.Transports {
		for _, note := range []string{"refused", "fresh", kit.KeyFor(via, "lost"), kit.KeyFor(via, "unknown")} {
			kit.WantNoPayment(t, other.Client(via), note)
		}
	}
}

// Without an API key nothing is told, of keys least of all.
func TestUnauthorizedIsRefusedFirst(t *testing.T) {
	t.Parallel()
	in := kit.StartInstance(t, "one")
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		c, key := in.Client(via), kit.KeyFor(via, "secret")
		kit.WantPaidOnce(t, "payment", c, key)
		for _, token := range []string{"", "wrong", "demo2"} {
			kit.WantRefusal(t, "repeat with API key "+token, c.As(token).Pay(key, kit.Amount, key), "unauthorized")
			kit.WantRefusal(t, "token with API key "+token, c.As(token).RequestToken(), "unauthorized")
		}
		// Another merchant's key of the same name is another key.
		theirs := c.As("test").PayWithRetries(key, kit.Amount+1, key)
		if !theirs.IsPayment() || theirs.Replayed {
			t.Errorf("another merchant's payment = %v, want it made", theirs)
		}
	})
}
