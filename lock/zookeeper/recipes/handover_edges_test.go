package recipes

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

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
