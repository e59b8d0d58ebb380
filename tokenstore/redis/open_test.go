package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// inOneShard begins n attempts in one shard; miniredis's clock stands, so that
// all have the same score.
func inOneShard(tb testing.TB, s *Store, n int) ([]driver.KeyID, map[driver.KeyID]driver.Attempt) {
	tb.Helper()
	attempts := make(map[driver.KeyID]driver.Attempt, n)
	var ids []driver.KeyID
	for range n {
		id, req := newAttempt(driver.ClientKey)
		id[0] = 7
		attempts[id] = mustBegin(tb, s, id, req)
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b driver.KeyID) int { return slices.Compare(a[:], b[:]) })
	return ids, attempts
}

// walk pages through all open records, and calls between after every page.
func walk(tb testing.TB, s *Store, q driver.OpenQuery, between func(page int)) []driver.KeyID {
	tb.Helper()
	var ids []driver.KeyID
	for page := 0; ; page++ {
		got, err := s.ListOpen(tb.Context(), q)
		if err != nil {
			tb.Fatalf("Open(%+v) = %v, want <nil>", q, err)
		}
		if len(got.Records) > q.Limit {
			tb.Fatalf("Open(%+v) = %d records", q, len(got.Records))
		}
		for _, r := range got.Records {
			ids = append(ids, r.ID)
		}
		if q.After = got.Next; q.After == nil {
			return ids
		}
		if between != nil {
			between(page)
		}
	}
}

func wantIDs(tb testing.TB, got, want []driver.KeyID) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Errorf("walked over %d records, want %d in order of start and ID", len(got), len(want))
	}
}

func TestOpenPagesThroughEqualScores(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	ids, _ := inOneShard(t, s, 40)
	for _, limit := range []int{7, 16, 17, 39, 40, 41} {
		wantIDs(t, walk(t, s, driver.OpenQuery{Limit: limit}, nil), ids)
	}
	early := driver.OpenCursor{Started: m.now.Add(-time.Hour)}
	late := driver.OpenCursor{Started: m.now.Add(time.Microsecond)} // between two ms
	wantIDs(t, walk(t, s, driver.OpenQuery{Limit: 30, After: &early}, nil), ids)
	wantIDs(t, walk(t, s, driver.OpenQuery{Limit: 30, After: &late}, nil), nil)
}

// A listing of a rare state reads many records of another state at once.
func TestOpenWalksOverRecordsOfAnotherState(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client)
	ids, attempts := inOneShard(t, s, 300)
	first, last := ids[0], ids[len(ids)-1]
	for _, id := range []driver.KeyID{first, last} {
		st := completion(attempts[id], "")
		st.State = driver.StateUnknown
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatal(err)
		}
	}
	h := new(hook)
	client.AddHook(h)
	wantIDs(t, walk(t, s, driver.OpenQuery{State: driver.StateUnknown, Limit: 1}, nil), []driver.KeyID{first, last})
	if got := h.n.Load(); got > 60 {
		t.Errorf("Open(unknown) among 300 records took %d round trips, want at most 60", got)
	}
}

// Records that were walked over are settled between pages, by a resolver say,
// and between the reads of one page.
func TestOpenMissesNothingWhileRecordsAreSettled(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client)
	other := open(t, connect(t, "redis://"+m.Addr()))
	ids, attempts := inOneShard(t, s, 150)
	next := 0
	settle := func(n int) {
		for range n {
			if next < 75 {
				if _, err := other.Settle(t.Context(), ids[next], completion(attempts[ids[next]], "")); err != nil {
					t.Errorf("Settle(%v) = %v", ids[next], err)
				}
				next++
			}
		}
	}
	got := walk(t, s, driver.OpenQuery{Limit: 10}, func(int) { settle(5) })
	wantIDs(t, got, ids)

	// The first page's members are settled while the second is fetched.
	ids, next = ids[75:], 0
	h := &hook{at: 2, before: func() { settle(20) }}
	client.AddHook(h)
	found := make(map[driver.KeyID]bool)
	for _, id := range walk(t, s, driver.OpenQuery{Limit: 1000}, nil) {
		found[id] = true
	}
	for _, id := range ids[20:] {
		if !found[id] {
			t.Errorf("Open() misses %v, which was open all the time", id)
		}
	}
	if h.n.Load() < 2 || next != 20 {
		t.Fatalf("%d records were settled after %d round trips, want 20", next, h.n.Load())
	}
}

// One call walks over a bounded number of wrong members of an open set, and returns the
// place to go on from.
func TestOpenDoesABoundedAmountOfWork(t *testing.T) {
	client := connect(t, testserver.SharedRedis(t))
	s := open(t, client, WithPrefix(freshPrefix(t)))
	const stale = 20_000
	id, req := newAttempt(driver.ClientKey)
	id[0] = 7
	var members []goredis.Z
	for i := range stale {
		gone := id
		binary.BigEndian.PutUint32(gone[1:], uint32(i))
		members = append(members, goredis.Z{Score: 1, Member: gone.String()})
	}
	if err := client.ZAdd(t.Context(), s.keys.open(redisserver.ShardOf(id)), members...).Err(); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, s, id, req)
	h := new(hook)
	client.AddHook(h)
	calls := 0
	for q := (driver.OpenQuery{Limit: 100}); ; calls++ {
		before := h.n.Load()
		page, err := s.ListOpen(t.Context(), q)
		if err != nil {
			t.Fatalf("Open(%+v) = %v, want <nil>", q, err)
		}
		if got := h.n.Load() - before; got > 3 { // the first call may send the script
			t.Fatalf("call %d took %d round trips, want at most 3", calls, got)
		}
		if len(page.Records) > 0 {
			if page.Records[0].ID != id || page.Next != nil {
				t.Errorf("Open() = %v, next %v, want %v and no more", page.Records[0].ID, page.Next, id)
			}
			break
		}
		if page.Next == nil {
			t.Fatal("Open() does not list what is open")
		}
		q.After = page.Next
	}
	if least := stale / 100; calls < least {
		t.Errorf("%d stale members took %d calls, want at least %d", stale, calls, least)
	}
}

func TestOpenAndRetireOnACluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithRedisArgs("--cluster-require-full-coverage", "no"))
	s := open(t, connect(t, clusterAddr(c)))
	defer wantOpenOfTheOthers(t, c, s)
	want := make(map[driver.KeyID]bool)
	var mu sync.Mutex
	for i := range 3 * Shards {
		id, req := newAttempt(driver.ClientKey)
		id[0] = byte(i)
		mustBegin(t, s, id, req)
		mu.Lock()
		want[id] = true
		mu.Unlock()
	}
	var last driver.OpenCursor
	for _, id := range walk(t, s, driver.OpenQuery{Limit: 10}, nil) {
		rec, err := s.Get(t.Context(), id)
		at := driver.OpenCursor{Started: rec.Started, ID: id}
		if err != nil || !want[id] || at.Compare(last) <= 0 {
			t.Fatalf("walked over %v after %v, %v: twice, unknown or out of order", at, last, err)
		}
		delete(want, id)
		last = at
	}
	if len(want) != 0 {
		t.Errorf("%d records were missed", len(want))
	}

	for i := range 20 {
		domain := fmt.Sprintf("domain-%d", i)
		if i%2 == 0 {
			for range 2 {
				if err := s.RetireDomain(t.Context(), domain, driver.Decision{By: "operator"}); err != nil {
					t.Errorf("RetireDomain(%q) = %v, want <nil>", domain, err)
				}
			}
		}
		if got, err := s.DomainRetired(t.Context(), domain); err != nil || got != (i%2 == 0) {
			t.Errorf("Retired(%q) = %v, %v, want %v", domain, got, err, i%2 == 0)
		}
	}
}

// wantOpenOfTheOthers has one server hang. The records of the others are listed, and an error says that the list is
// not complete.
func wantOpenOfTheOthers(t *testing.T, c *testserver.RedisCluster, s *Store) {
	t.Helper()
	node, _, err := c.Owner(s.keys.incarnation(0))
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for shard := range Shards {
		if owner, _, err := c.Owner(s.keys.incarnation(shard)); err != nil {
			t.Fatal(err)
		} else if owner.Addr() != node.Addr() {
			others += 3
		}
	}
	node.Pause()
	defer node.Resume()
	await(t, "the records of the other servers", func() error { // a busy server may take longer than half of the time
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		page, err := s.ListOpen(ctx, driver.OpenQuery{})
		if len(page.Records) != others || !errors.Is(err, driver.ErrUnavailable) {
			return fmt.Errorf("ListOpen() = %d records, %w while a server hangs, want %d and %w", len(page.Records), err, others, driver.ErrUnavailable)
		}
		return nil
	})
}

// A Redis that lost its records has forgotten which domains are dead: their
// pending records, should any come back, are in progress again.
func TestRetiredDomainsGoWithALoss(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	if err := s.RetireDomain(t.Context(), "old", driver.Decision{By: "operator", Reason: "rebuilt"}); err != nil {
		t.Fatal(err)
	}
	m.FlushAll()
	if got, err := s.DomainRetired(t.Context(), "old"); err != nil || got {
		t.Errorf("Retired() after a loss = %v, %v, want false", got, err)
	}
}
