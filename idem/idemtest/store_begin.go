package idemtest

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeBeginTests are the rows in the table of Begin.
var storeBeginTests = []storeTest{
	{name: "a key that nothing is known of is none", run: func(b *storeBench) {
		if diff := differ(b.get(), driver.Record{}); diff != "" {
			b.Errorf("Get(%v) = a record with %s", b.id, diff)
		}
	}},
	{name: "a store that works answers pings", run: func(b *storeBench) {
		if err := b.s.Ping(b.ctx); err != nil {
			b.Errorf("Ping() = %v, want <nil>", err)
		}
	}},
	{name: "none, client key: attempt 1", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		res := b.begin(req)
		want := driver.Record{
			State: driver.StatePending, Kind: driver.ClientKey, Route: req.Route, Fingerprint: req.Fingerprint,
			Attempt: driver.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce},
			Created: res.Record.Started, Started: res.Record.Started, ResultTTL: req.ResultTTL, KeyTTL: req.KeyTTL,
		}
		if diff := differ(res.Record, want); diff != "" || !res.Begun {
			b.Errorf("Begin(%v) = begun %v, %s, want it begun", b.id, res.Begun, diff)
		}
		if res.Record.Started.IsZero() {
			b.Errorf("Begin(%v) = Started zero, want the store's time", b.id)
		}
		if diff := differ(b.get(), res.Record); diff != "" {
			b.Errorf("Get(%v) after Begin: %s", b.id, diff)
		}
	}},
	{name: "none, issued token: not begun", run: func(b *storeBench) {
		b.kept(b.request(driver.IssuedToken), driver.StateNone)
	}},
	{name: "issued, issued token: attempt 1", run: func(b *storeBench) {
		issued := b.issue(time.Hour)
		if issued.State != driver.StateIssued || issued.Kind != driver.IssuedToken || issued.Created.IsZero() ||
			issued.Attempt != (driver.Attempt{}) || !issued.KeyExpires.IsZero() {
			b.Fatalf("Issue(%v) = %+v, want an issued token without an attempt", b.id, issued)
		}
		if got := issued.TokenExpires.Sub(issued.Created); got != time.Hour {
			b.Errorf("Issue(%v) = a token for %v, want %v", b.id, got, time.Hour)
		}
		if diff := differ(b.get(), issued); diff != "" {
			b.Errorf("Get(%v) after Issue: %s", b.id, diff)
		}
		a, req := b.start(driver.IssuedToken)
		rec := b.in(driver.StatePending, 1)
		if a.Number != 1 || rec.Kind != driver.IssuedToken || rec.Fingerprint != req.Fingerprint || rec.Route != req.Route {
			b.Errorf("Get(%v) after Begin = %+v, want attempt 1 of the token", b.id, rec)
		}
		if !rec.TokenExpires.Equal(issued.TokenExpires) || !rec.Created.Equal(issued.Created) {
			b.Errorf("Get(%v) after Begin = expiry %v, want the old one, %v", b.id, rec.TokenExpires, issued.TokenExpires)
		}
	}},
	{name: "issued, client key: not begun", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.kept(b.request(driver.ClientKey), driver.StateIssued)
	}},
	{name: "released, same kind: next attempt", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(decision(first, driver.StateReleased), true)
		req := b.request(driver.ClientKey)
		req.Route, req.Fingerprint.Sum[0] = "another route", req.Fingerprint.Sum[0]+1
		res := b.begin(req)
		want := driver.Record{
			State: driver.StatePending, Route: req.Route, Fingerprint: req.Fingerprint,
			Attempt: driver.Attempt{Number: 2, Fence: req.Fence, Nonce: req.Nonce},
			Created: res.Record.Created, Started: res.Record.Started, ResultTTL: req.ResultTTL, KeyTTL: req.KeyTTL,
		}
		if diff := differ(res.Record, want); diff != "" || !res.Begun {
			b.Errorf("Begin(%v) after release = begun %v, %s", b.id, res.Begun, diff)
		}
		b.isOpen(true)
	}},
	{name: "released, other kind: not begun", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateReleased), true)
		b.kept(b.request(driver.IssuedToken), driver.StateReleased)
	}},
	{name: "released token: next attempt", run: func(b *storeBench) {
		b.issue(time.Hour)
		first, _ := b.start(driver.IssuedToken)
		b.settle(settlement(first, driver.StateReleased), true)
		if second, _ := b.start(driver.IssuedToken); second.Number != 2 {
			b.Errorf("Begin(%v) after release = attempt %d, want 2", b.id, second.Number)
		}
	}},
	{name: "pending: not begun", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		b.kept(b.request(driver.ClientKey), driver.StatePending)
	}},
	{name: "pending by a foreign domain: not begun", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		b.kept(storeRequest(driver.ClientKey, "foreign", 1), driver.StatePending)
		b.kept(storeRequest(driver.ClientKey, "foreign", ^uint64(0)), driver.StatePending)
	}},
	{name: "pending under the same fence: not begun", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.kept(storeRequest(driver.ClientKey, storeDomain, first.Fence.Token), driver.StatePending)
	}},
	{name: "completed: not begun", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateCompleted), true)
		b.kept(b.request(driver.ClientKey), driver.StateCompleted)
	}},
	{name: "completed token: not begun", run: func(b *storeBench) {
		b.issue(time.Hour)
		first, _ := b.start(driver.IssuedToken)
		b.settle(settlement(first, driver.StateCompleted), true)
		b.kept(b.request(driver.IssuedToken), driver.StateCompleted)
		b.kept(b.request(driver.ClientKey), driver.StateCompleted)
	}},
	{name: "unknown: not begun", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateUnknown), true)
		b.kept(b.request(driver.ClientKey), driver.StateUnknown)
	}},
	{name: "another key is not touched", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		b.id[len(b.id)-1] ^= 1
		if a, _ := b.start(driver.ClientKey); a.Number != 1 {
			b.Errorf("Begin(%v) = attempt %d, want 1", b.id, a.Number)
		}
	}},
	{name: "long texts are kept whole", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		req.Route, req.Fence.Domain = longText(255), longText(128)
		a := b.begun(req)
		d := decision(a, driver.StateUnknown)
		d.Decision = driver.Decision{By: longText(128), Reason: longText(512)}
		rec := b.settle(d, true)
		if rec.Route != req.Route || rec.Attempt.Fence.Domain != req.Fence.Domain || rec.Decision != d.Decision {
			b.Errorf("Settle(%v) = %+v, want the texts as they were given", b.id, rec)
		}
	}},
	{name: "a context that has ended is an error", run: func(b *storeBench) {
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if _, err := b.s.Begin(ctx, b.id, b.request(driver.ClientKey)); !errors.Is(err, context.Canceled) {
			b.Errorf("Begin(%v) with an ended context = %v, want %v", b.id, err, context.Canceled)
		}
		if _, err := b.s.Get(ctx, b.id); !errors.Is(err, context.Canceled) {
			b.Errorf("Get(%v) with an ended context = %v, want %v", b.id, err, context.Canceled)
		}
		b.in(driver.StateNone, 0)
	}},
}

// longText has n bytes, more than one in some of its characters.
func longText(n int) string {
	s := make([]byte, 0, n)
	for len(s) < n-1 {
		s = append(s, "ü"...)
	}
	for len(s) < n {
		s = append(s, '.')
	}
	return string(s)
}
