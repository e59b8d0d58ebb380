package console

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// endless is a store with doubts without end.
type endless struct{ driver.Store }

func (endless) ListOpen(_ context.Context, q driver.OpenQuery) (page driver.OpenPage, _ error) {
	n := uint64(0)
	if q.After != nil {
		n = binary.BigEndian.Uint64(q.After.ID[:]) + 1
	}
	for range q.Limit {
		var id driver.KeyID
		binary.BigEndian.PutUint64(id[:], n)
		n++
		page.Records = append(page.Records, driver.OpenRecord{ID: id, Record: driver.Record{State: driver.StateUnknown, Route: "r", Started: time.Unix(1, 0)}})
	}
	last := page.Records[len(page.Records)-1].Cursor()
	page.Next = &last
	return page, nil
}

// A selection has the oldest records, and says that there are more.
func TestSelectionIsBounded(t *testing.T) {
	c := &Console{store: endless{}, look: operate.Looker{Store: endless{}}}
	sel := &selection{}
	if err := c.selectAll(t.Context(), sel, query{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if len(sel.doubts) != mostSelected || !sel.more || binary.BigEndian.Uint64(sel.doubts[mostSelected-1].ID[:]) != mostSelected-1 {
		t.Errorf("the selection has %d records, more = %t", len(sel.doubts), sel.more)
	}
}

// An instance keeps few selections of one operator, and few of all.
func TestSelectionsAreBounded(t *testing.T) {
	var s selections
	add := func(id, by string, age time.Duration) { s.add(&selection{id: id, by: by, made: time.Now().Add(-age)}) }
	has := func(id, by string) bool { return s.get(id, Operator{Name: by}) != nil }
	add("old", "ada", selectionLife+time.Second)
	add("bob", "bob", 0)
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		add(id, "ada", 0)
	}
	if has("old", "ada") || has("1", "ada") || !has("2", "ada") || !has("5", "ada") || !has("bob", "bob") || has("bob", "ada") {
		t.Errorf("the selections are %+v", s.list)
	}
	for i := range mostOfAll {
		add("x", string(rune('a'+i)), 0)
	}
	if has("bob", "bob") || has("5", "ada") || len(s.list) != mostOfAll {
		t.Errorf("there are %d selections", len(s.list))
	}
}
