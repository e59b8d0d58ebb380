package server_test

import "testing"

// A request that may not be made uses no key up. The owner of the key then gets a payment of its
// own, and neither a refusal nor the answer to somebody else.
func TestUnauthorisedFirstUseLeavesNoTrace(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	const key = "poisoned"
	other := `{"from":"alice","to":"carol","amount":9999,"currency":"USD","note":"poison"}`
	for _, bearer := range []string{"", "Bearer ", "Bearer nobody", "Basic ZGVtbzpkZW1v", "Bearer demo, Bearer demo", "demo"} {
		c.pay(key, other, "Authorization", bearer).wantAnswer(t, "first use by "+bearer, 401, "unauthorized")
	}
	c.pay(key, other, "Authorization", "Bearer test").wantAnswer(t, "first use by another merchant", 201, "")
	if state := c.state(key); state != "none" {
		t.Errorf("the owner's key is %s after other clients used it, want none", state)
	}
	first := c.pay(key, order)
	first.wantAnswer(t, "payment of the owner", 201, "")
	if first.replayed() || first.field("to") != "bob" {
		t.Errorf("the owner's first request is answered with %s, replayed %v", first.body, first.replayed())
	}
	c.pay(key, order, "Authorization", "Bearer nobody").wantAnswer(t, "repeat by a stranger", 401, "unauthorized")
	c.pay(key, order, "Authorization", "Bearer test").wantAnswer(t, "repeat by another merchant", 422, "key-reused")
	if again := c.pay(key, order); !again.replayed() || again.body != first.body {
		t.Errorf("the owner's repeat is answered with %s, replayed %v", again.body, again.replayed())
	}
}
