package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// wantRemembered requires that a later attempt on the key does not begin.
func wantRemembered(tb testing.TB, s *Store, id driver.KeyID, req driver.BeginRequest, want driver.State) {
	tb.Helper()
	rec, err := s.Get(tb.Context(), id)
	if err != nil || rec.State != want {
		tb.Errorf("Get(%v) = %v, %v, want %v", id, rec.State, err, want)
	}
	req.Fence.Token++
	req.Nonce = driver.NewNonce()
	if res, err := s.Begin(tb.Context(), id, req); err != nil || res.Begun || res.Record.State != want {
		tb.Errorf("Begin(%v) = %v, %v, %v, want the %v record", id, res.Begun, res.Record.State, err, want)
	}
}

// The server's clock goes back, by an operator's hand or at a failover to a
// server whose clock is behind: nothing that was remembered is forgotten or
// begins again.
func TestClockThatGoesBackLosesNothing(t *testing.T) {
	for _, body := range []string{"inline", strings.Repeat("apart", 1000)} {
		t.Run(body[:5], func(t *testing.T) {
			m := startMini(t)
			s := open(t, connect(t, "redis://"+m.Addr()))
			begin := func() (driver.KeyID, driver.BeginRequest, driver.Attempt) {
				id, req := newAttempt(driver.ClientKey)
				return id, req, mustBegin(t, s, id, req)
			}
			settle := func(id driver.KeyID, st driver.Settlement) {
				t.Helper()
				if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled {
					t.Fatalf("Settle(%v) = %v, %v, want settled", id, res.Settled, err)
				}
			}
			pending, pendingReq, a := begin()
			unknown, unknownReq, b := begin()
			st := completion(b, body)
			st.State = driver.StateUnknown
			settle(unknown, st)
			expired, expiredReq, b := begin()
			st = completion(b, body)
			st.KeyTTL = 100 * time.Hour
			settle(expired, st)
			m.Advance(st.ResultTTL)
			wantRemembered(t, s, expired, expiredReq, driver.StateExpired)
			completed, completedReq, b := begin()
			settle(completed, completion(b, body))

			m.SetTime(m.now.Add(-48 * time.Hour))
			wantRemembered(t, s, pending, pendingReq, driver.StatePending)
			wantRemembered(t, s, unknown, unknownReq, driver.StateUnknown)
			wantRemembered(t, s, completed, completedReq, driver.StateCompleted)
			// A result that is still there is told again; one that has gone is not.
			rec, _ := s.Get(t.Context(), expired)
			wantRemembered(t, s, expired, expiredReq, rec.State)
			if want := map[bool]driver.State{true: driver.StateCompleted, false: driver.StateExpired}[body == "inline"]; rec.State != want {
				t.Errorf("Get(%v) = %v, want %v", expired, rec.State, want)
			}
			// An attempt goes on where the clock has gone back under it.
			settle(pending, completion(a, body))
			wantRemembered(t, s, pending, pendingReq, driver.StateCompleted)
		})
	}
}

// Real expiries, and a restart: the result goes, the key stays.
func TestExpiredKeyIsRememberedAcrossARestart(t *testing.T) {
	r := testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes", "--appendfsync", "always"))
	s := open(t, connect(t, r.URL()))
	type key struct {
		id  driver.KeyID
		req driver.BeginRequest
	}
	var keys []key
	for _, body := range []string{"inline", strings.Repeat("apart", 1000)} {
		id, req := newAttempt(driver.ClientKey)
		req.ResultTTL, req.KeyTTL = 50*time.Millisecond, time.Hour
		st := completion(mustBegin(t, s, id, req), body)
		st.ResultTTL, st.KeyTTL = req.ResultTTL, req.KeyTTL
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key{id, req})
	}
	gone := func(k key) error {
		rec, err := s.Get(context.Background(), k.id)
		switch {
		case err != nil:
			return err
		case rec.State != driver.StateExpired:
			return errors.New("the result is still there")
		}
		return nil
	}
	for _, k := range keys {
		await(t, "the result to expire", func() error { return gone(k) })
		wantRemembered(t, s, k.id, k.req, driver.StateExpired)
	}
	r.Kill()
	r.Restart()
	for _, k := range keys {
		await(t, "the server", func() error { return gone(k) })
		wantRemembered(t, s, k.id, k.req, driver.StateExpired)
		for name, want := range map[string]string{s.keys.record(k.id): "1", s.keys.body(k.id): "0"} {
			if got, err := r.Do("EXISTS", name); err != nil || got[0] != want {
				t.Errorf("EXISTS %s = %v, %v, want %s", name, got, err, want)
			}
		}
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want no loss", err)
	}
}
