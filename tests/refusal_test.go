package tests

import (
	"strings"
	"testing"
)

// TestRefusals makes a live system refuse for every reason that the sample can
// produce, over each transport, and compares what the client sees with the
// table (see problems).
func TestRefusals(t *testing.T) {
	s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
	type refusal struct {
		what   string
		via    transport
		answer answer
		code   string
	}
	var rows []refusal
	add := func(via transport, what string, a answer, code string) {
		rows = append(rows, refusal{what, via, a, code})
	}
	good := fromAlice(amount, "refused")
	for _, via := range transports {
		c := other.client(via)
		send := func(r route, o order, keys ...string) answer { return c.send(t.Context(), r, o, keys...) }
		token, paid := c.issueToken(t), keyFor(via, "paid")
		wantPaidOnce(t, "payment", c, paid)
		add(via, "no key", send(toPayments, good), "key-missing")
		add(via, "no token", send(toTrades, good), "key-missing")
		add(via, "list of keys", send(toPayments, good, "a, b"), "key-invalid")
		add(via, "two keys", send(toPayments, good, "a", "b"), "key-invalid")
		add(via, "bad body", send(toPayments, order{}, "bad-body"), "body-invalid")
		add(via, "junk token", send(toTrades, good, "junk"), "token-unknown")
		add(via, "token of another", c.as("test").trade(token, amount, "refused"), "token-unknown")
		add(via, "token as client key", send(toPayments, good, token), "key-reused")
		add(via, "other request", c.pay(paid, amount+1, paid), "key-reused")
		add(via, "body over 1 MiB", c.pay("large", amount, strings.Repeat("n", 1<<20)), "body-too-large")
	}

	all := v.startPaymentsUpTo(t, "unknown", "at=before-ledger")
	for _, r := range all {
		c := other.client(r.via)
		add(r.via, "running elsewhere", wantInProgress(t, "running elsewhere", c, r.key), "in-progress")
		add(r.via, "running here", wantInProgress(t, "running here", v.client(r.via), r.key), "in-progress")
		add(r.via, "other request, running elsewhere", c.pay(r.key, amount+1, r.key), "key-reused")
		add(r.via, "other request, running here", v.client(r.via).pay(r.key, amount+1, r.key), "key-reused")
	}
	v.kill(t)
	for _, r := range all {
		add(r.via, "interrupted", other.client(r.via).payWithRetries(r.key, amount, r.key), "outcome-unknown")
	}

	// The holder is cut off from ZooKeeper for longer than it can trust its lease.
	p := s.zooKeeperProxy()
	cutOff := s.start("the one cut off", throughZooKeeper(p), withLatency(2*waitLimit))
	lost := cutOff.startPaymentsUpTo(t, "lost", "at=before-ledger")
	outages[0].begin(p)
	for _, r := range lost {
		add(r.via, "cut off while running", <-r.done, "ownership-lost")
		add(r.via, "ZooKeeper down", cutOff.client(r.via).pay("fresh", amount, "fresh"), "unavailable")
	}

	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	for _, via := range transports {
		add(via, "Redis flushed", other.client(via).pay("fresh", amount, "fresh"), "store-lost")
	}
	s.redis.Kill()
	for _, via := range transports {
		add(via, "Redis down", other.client(via).pay("fresh", amount, "fresh"), "unavailable")
	}

	for _, r := range rows {
		t.Run(r.via.String()+"/"+r.what, func(t *testing.T) {
			wantRefusal(t, r.what, r.answer, r.code)
			if r.answer.replayed {
				t.Errorf("%s is marked as replayed", r.what)
			}
		})
	}
	for _, via := range transports {
		for _, note := range []string{"refused", "fresh", keyFor(via, "lost"), keyFor(via, "unknown")} {
			wantNoPayment(t, other.client(via), note)
		}
	}
}

// Without an API key nothing is told, of keys least of all.
func TestUnauthorizedIsRefusedFirst(t *testing.T) {
	t.Parallel()
	in := startInstance(t, "one")
	forEachTransport(t, func(t *testing.T, via transport) {
		c, key := in.client(via), keyFor(via, "secret")
		wantPaidOnce(t, "payment", c, key)
		for _, token := range []string{"", "wrong", "demo2"} {
			wantRefusal(t, "repeat with API key "+token, c.as(token).pay(key, amount, key), "unauthorized")
			wantRefusal(t, "token with API key "+token, c.as(token).requestToken(), "unauthorized")
		}
		// Another merchant's key of the same name is another key.
		theirs := c.as("test").payWithRetries(key, amount+1, key)
		if !theirs.isPayment() || theirs.replayed {
			t.Errorf("another merchant's payment = %v, want it made", theirs)
		}
	})
}
