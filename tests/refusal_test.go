package tests

import (
	"strings"
	"testing"
)

// TestRefusals makes a live system refuse for every reason that the sample can
// produce, over each transport, and compares what the client sees with the
// table (see problems).
func TestRefusals(t *testing.T) {
	s, v, other := failover(t, flags("--resolver", "none"))
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
		c := other.over(via)
		send := func(r route, o order, keys ...string) answer { return c.send(t.Context(), r, o, keys...) }
		token, paid := c.issue(t), keyOver(via, "paid")
		original(t, "payment", c.payUntil(patience, paid, amount, paid), paidOnce(t, c, paid))
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

	all := v.reachOverEach(t, "unknown", "at=before-ledger")
	for _, r := range all {
		c := other.over(r.via)
		add(r.via, "running elsewhere", inProgress(t, "running elsewhere", c, r.key), "in-progress")
		add(r.via, "running here", inProgress(t, "running here", v.over(r.via), r.key), "in-progress")
		add(r.via, "other request, running elsewhere", c.pay(r.key, amount+1, r.key), "key-reused")
		add(r.via, "other request, running here", v.over(r.via).pay(r.key, amount+1, r.key), "key-reused")
	}
	v.kill(t)
	for _, r := range all {
		add(r.via, "interrupted", other.over(r.via).payUntil(patience, r.key, amount, r.key), "outcome-unknown")
	}

	// The holder is cut off from ZooKeeper for longer than it can trust its lease.
	p := s.zooKeeperProxy()
	cutOff := s.start("the one cut off", throughZooKeeper(p), latency(2*patience))
	lost := cutOff.reachOverEach(t, "lost", "at=before-ledger")
	downs[0].down(p)
	for _, r := range lost {
		add(r.via, "cut off while running", <-r.done, "ownership-lost")
		add(r.via, "ZooKeeper down", cutOff.over(r.via).pay("fresh", amount, "fresh"), "unavailable")
	}

	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	for _, via := range transports {
		add(via, "Redis flushed", other.over(via).pay("fresh", amount, "fresh"), "store-lost")
	}
	s.redis.Kill()
	for _, via := range transports {
		add(via, "Redis down", other.over(via).pay("fresh", amount, "fresh"), "unavailable")
	}

	for _, r := range rows {
		t.Run(r.via.String()+"/"+r.what, func(t *testing.T) {
			refused(t, r.what, r.answer, r.code)
			if r.answer.replayed {
				t.Errorf("%s is marked as replayed", r.what)
			}
		})
	}
	for _, via := range transports {
		for _, note := range []string{"refused", "fresh", keyOver(via, "lost"), keyOver(via, "unknown")} {
			paidNever(t, other.over(via), note)
		}
	}
}

// Without an API key nothing is told, of keys least of all.
func TestUnauthorizedIsRefusedFirst(t *testing.T) {
	t.Parallel()
	in := startInstance(t, "one")
	overEach(t, func(t *testing.T, via transport) {
		c, key := in.over(via), keyOver(via, "secret")
		original(t, "payment", c.payUntil(patience, key, amount, key), paidOnce(t, c, key))
		for _, token := range []string{"", "wrong", "demo2"} {
			refused(t, "repeat with API key "+token, c.as(token).pay(key, amount, key), "unauthorized")
			refused(t, "token with API key "+token, c.as(token).tokenAnswer(), "unauthorized")
		}
		// Another merchant's key of the same name is another key.
		theirs := c.as("test").payUntil(patience, key, amount+1, key)
		if !theirs.paid() || theirs.replayed {
			t.Errorf("another merchant's payment = %v, want it made", theirs)
		}
	})
}
