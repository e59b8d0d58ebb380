package console_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// slowStore lists one page, and nothing more in the time that a page has.
type slowStore struct{ *memorystore.Store }

func (s slowStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	if q.After != nil {
		<-ctx.Done()
		return driver.OpenPage{}, ctx.Err()
	}
	return s.Store.ListOpen(ctx, q)
}

// A store with more doubts than can be counted in time is not told as one that does not answer.
func TestDoubtsOfASlowStoreAreCountedInPart(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := slowStore{memorystore.New()}
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	for i := range 501 {
		r.inDoubt(idem.Key(fmt.Sprintf("k%03d", i)), nil)
	}
	r.as("ada").get("health").want(t, 200, "more than 500 in doubt", "!does not answer", "!does not tell its domain", "There are more")
}

// A page reads a bounded number of records, however many a filter leaves out.
func TestFilterAmongThousandsOfRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	for i := range 2001 {
		r.inDoubt(idem.Key(fmt.Sprint("k", i)), nil)
	}
	r.as("ada").get("?route=refunds").want(t, 200, "2000 records were read for this page", "Go on searching")
}

// A server that is down is told to operators, without its address.
func TestStoreThatIsDown(t *testing.T) {
	t.Parallel()
	store := brokenStore{memorystore.New()}
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	for _, path := range []string{"", "key/" + id("k").String()} {
		r.as("ada").get(path).want(t, 503, "does not answer", "!10.0.0.1")
	}
	r.as("ada").get("health").want(t, 200, "could not be listed", "does not accept new records", "!10.0.0.1")
	if !strings.Contains(r.log.String(), "10.0.0.1") {
		t.Errorf("the log does not tell the reason: %s", r.log)
	}
}

// A part of the store that does not answer hides no records of the others.
func TestStoreThatIsDownInPart(t *testing.T) {
	t.Parallel()
	store := partialStore{memorystore.New()}
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	if _, err := store.Begin(t.Context(), id("k"), driver.BeginRequest{Route: "POST /part", Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: "d", Token: 1}}); err != nil {
		t.Fatal(err)
	}
	r.as("ada").get("?view=all").want(t, 200, "A part of the token store does not answer", "POST /part", "!10.0.0.1")
	r.as("ada").get("health").want(t, 200, "A part of the token store does not answer", "1 running or interrupted", "!10.0.0.1")
}

// partialStore lists what the part has that answers.
type partialStore struct{ *memorystore.Store }

func (s partialStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := s.Store.ListOpen(ctx, q)
	return page, cmp.Or(err, errDown)
}

type brokenStore struct{ *memorystore.Store }

var errDown = fmt.Errorf("%w: dial 10.0.0.1: refused", driver.ErrUnavailable)

func (brokenStore) Get(context.Context, driver.KeyID) (driver.Record, error) {
	return driver.Record{}, errDown
}
func (brokenStore) ListOpen(context.Context, driver.OpenQuery) (driver.OpenPage, error) {
	return driver.OpenPage{}, errDown
}
func (brokenStore) Ping(context.Context) error { return errDown }
