package redisstore

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Redis may hold a key for some ticks longer than its time to live, as a script
// sees it. The times in the record decide.
func TestRecordsOwnTimesDecide(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	id, req := newAttempt(driver.ClientKey)
	st := completion(mustBegin(t, s, id, req), "paid")
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatal(err)
	}
	m.Elapse(st.ResultTTL) // without the expiry of keys
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateExpired || rec.Response != nil {
		t.Errorf("Get(%v) = %v, %v, want expired", id, rec.State, err)
	}
	m.Elapse(st.KeyTTL - st.ResultTTL)
	if !m.Exists(s.keys.record(id)) {
		t.Fatal("the key has expired by itself")
	}
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateNone {
		t.Errorf("Get(%v) = %v, %v, want none", id, rec.State, err)
	}
	req.Fence.Token++
	if a := mustBegin(t, s, id, req); a.Number != 1 {
		t.Errorf("Begin(%v) = attempt %d, want 1", id, a.Number)
	}
}

// Every script removes a closed attempt from the open set. Otherwise every listing would
// read it for ever.
func TestOpenSetHoldsOpenRecordsOnly(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	for name, end := range map[string]func(id driver.KeyID, req driver.BeginRequest, a driver.Attempt) error{
		"abort": func(id driver.KeyID, req driver.BeginRequest, _ driver.Attempt) error {
			return s.Abort(t.Context(), id, req)
		},
		"completed": func(id driver.KeyID, _ driver.BeginRequest, a driver.Attempt) error {
			_, err := s.Settle(t.Context(), id, completion(a, ""))
			return err
		},
		"released": func(id driver.KeyID, _ driver.BeginRequest, a driver.Attempt) error {
			_, err := s.Settle(t.Context(), id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
			return err
		},
	} {
		id, req := newAttempt(driver.ClientKey)
		key := s.keys.open(redisserver.ShardOf(id))
		a := mustBegin(t, s, id, req)
		if got, _ := m.ZMembers(key); len(got) != 1 || got[0] != id.String() {
			t.Errorf("%s: the open set holds %q, want %v", name, got, id)
		}
		if err := end(id, req, a); err != nil {
			t.Fatal(err)
		}
		if got, _ := m.ZMembers(key); len(got) != 0 {
			t.Errorf("%s: the open set holds %q, want nothing", name, got)
		}
	}
}

// An open set may hold members by mistake, whose record is gone or that are no key IDs. A listing looks behind some of
// them, and gives up on too many.
func TestOpenLooksBehindNonsense(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	id, req := newAttempt(driver.ClientKey)
	mustBegin(t, s, id, req)
	add := func(from, to int) {
		for i := from; i < to; i++ {
			if _, err := m.ZAdd(s.keys.open(redisserver.ShardOf(id)), 1, strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(0, 1)
	gone, key := id, s.keys.open(redisserver.ShardOf(id))
	gone[31] ^= 1
	if _, err := m.ZAdd(key, 1, gone.String()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, walk(t, s, driver.OpenQuery{Limit: 1}, nil), []driver.KeyID{id})
	if _, err := m.ZRem(key, gone.String()); err != nil {
		t.Fatal(err)
	}
	add(1, 100)
	if page, err := s.ListOpen(t.Context(), driver.OpenQuery{Limit: 1}); err != nil || len(page.Records) != 1 || page.Records[0].ID != id || page.Next != nil {
		t.Errorf("ListOpen() among 100 = %+v, %v, want %v", page, err, id)
	}
	add(100, mostMembers)
	if page, err := s.ListOpen(t.Context(), driver.OpenQuery{Limit: 1}); err == nil {
		t.Errorf("ListOpen() among %d = %+v, want an error", mostMembers, page)
	}
}

// A server goes away between the two round trips of a read. Nothing is told as missing.
func TestReadsThatFailHalfway(t *testing.T) {
	m := startMini(t)
	client := connect(t, "redis://"+m.Addr())
	s := open(t, client)
	id, req := newAttempt(driver.ClientKey)
	st := completion(mustBegin(t, s, id, req), string(make([]byte, 2*inlineLimit)))
	st.State = driver.StateUnknown
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"Get":      func(ctx context.Context) error { _, err := s.Get(ctx, id); return err },
		"ListOpen": func(ctx context.Context) error { _, err := s.ListOpen(ctx, driver.OpenQuery{}); return err },
	} {
		if err := call(t.Context()); err != nil { // the server knows the script now
			t.Fatalf("%s() = %v, want <nil>", name, err)
		}
		ctx, end := context.WithCancel(t.Context())
		h := &hook{at: 2, before: end}
		client.AddHook(h)
		if err := call(ctx); !errors.Is(err, driver.ErrUnavailable) || h.n.Load() != 2 {
			t.Errorf("%s() that fails before round trip 2 of %d = %v, want %v", name, h.n.Load(), err, driver.ErrUnavailable)
		}
		end()
	}
}
