package recipes

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// Only a lease of a mutex hands its lock over, and only to the waiter for a mutex right behind it. A
// place that is being made has no lease yet.
func TestNeighboursWithoutAHandOver(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	ln := MustNewMutex(c, "/m").ln
	take := func(role string) *Lease {
		t.Helper()
		l, err := ln.enqueue(bounded(t), sessionOf(c), role, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	reader, mutex, other, writer := take(reading), take(exclusive), take(exclusive), take(writing)
	claim, _, err := sessionOf(c).Claim(ln.path + "/" + line.Numbered(line.Prefix(exclusive, line.Unique()), 0) + "0000000000")
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Free()
	unmade, _ := line.Parse(claim.Path()[len(ln.path)+1:])
	for name, tt := range map[string]struct {
		waiter *Lease
		line   []line.Position
	}{
		"a mutex behind a reader":           {mutex, []line.Position{reader.place.Position, mutex.place.Position}},
		"a writer behind a mutex":           {writer, []line.Position{mutex.place.Position, writer.place.Position}},
		"a mutex behind a place being made": {mutex, []line.Position{unmade, mutex.place.Position}},
		"a mutex behind two others":         {other, []line.Position{mutex.place.Position, unmade, other.place.Position}},
	} {
		if got := tt.waiter.neighbour(tt.line, 0); got != nil {
			t.Errorf("%s: neighbour() = %v, want none", name, got)
		}
	}
	releaseAll(t, []*Lease{reader, mutex, other, writer})
}

// A waiter that may not read its znode after a hand-over says so. It does not take the znode for gone.
func TestHandOverThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	first, second := pairOf(t, r.Client)
	if _, err := r.Raw.SetACL(pathOf(second), zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	first.ReleaseInBackground()
	handed, err := second.awaitHandOver(bounded(t), first, second.held.Table().Client.Now().Add(-2*held.Young))
	if handed || !errors.Is(err, zookeeper.ErrNotPermitted) || second.Err() != nil {
		t.Errorf("awaitHandOver() = %t, %v with the lease %v, want %v", handed, err, second.Err(), zookeeper.ErrNotPermitted)
	}
	releaseAll(t, []*Lease{second})
}

// A waiter that is asked to let go before it has its turn, and gives up, passes the request to no
// heir.
func TestRequestToAPlaceThatNeverHadItsTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewMutex(r.Client, linePath)
	var places [2]*Lease
	for i := range places {
		l, err := m.ln.enqueue(bounded(t), sessionOf(r.Client), exclusive, nil)
		if err != nil {
			t.Fatal(err)
		}
		places[i] = l
	}
	first, second := places[0], places[1]
	first.place.inherit(second)
	if err := m.Revoke(bounded(t)); err != nil {
		t.Fatal(err)
	}
	recipetest.Release(r, first)
	wantOpen(t, second.place.wish())
	recipetest.Release(r, second)
}

// A place has no other name than one of its own.
func TestPlaceRefusesAnotherName(t *testing.T) {
	t.Parallel()
	own, other := line.Prefix(exclusive, line.Unique()), line.Prefix(exclusive, line.Unique())
	p := &place{prefix: own}
	for _, name := range []string{
		line.Numbered(other, 0) + "0000000001",
		line.Numbered(own, 0) + "99999999999", // no number of a place
		own, "", "x",
	} {
		if err := p.named(nil, "/m/"+name); err == nil || p.Name != "" {
			t.Errorf("named(%q) = %v with the name %q, want a refusal", name, err, p.Name)
		}
	}
}
