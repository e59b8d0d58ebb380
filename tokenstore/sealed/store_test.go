package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A store that accepts plain responses keeps the contract, too.
func TestStoreOverMemory(t *testing.T) {
	for name, opts := range map[string][]Option{"sealed": nil, "with plain ones": {WithPlain()}} {
		t.Run(name, func(t *testing.T) {
			var ahead atomic.Int64
			now := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(ahead.Load())) }
			ring := ringOf(t, "k2", "k1")
			idemtest.RunStore(t, idemtest.StoreHarness{
				New: func(tb testing.TB) driver.Store {
					return over(tb, memorystore.New(memorystore.WithClock(now)), ring, opts...)
				},
				Advance: func(d time.Duration) { ahead.Add(int64(d)) },
			})
		})
	}
}

func TestStoreOverRedis(t *testing.T) {
	open, _ := onRedis(t)
	ring := ringOf(t, "k2", "k1")
	idemtest.RunStore(t, idemtest.StoreHarness{New: func(tb testing.TB) driver.Store { return over(tb, open(), ring) }})
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(nil, ringOf(t, "k1")); err == nil {
		t.Error("New(nil, ring) = <nil>, want an error")
	}
	for _, ring := range []*Ring{nil, {}} {
		if _, err := New(memorystore.New(), ring); err == nil {
			t.Errorf("New(store, %v) = <nil>, want an error", ring)
		}
	}
	if _, err := NewJoined(nil, ringOf(t, "k1")); err == nil {
		t.Error("NewJoined(nil, ring) = <nil>, want an error")
	}
	if _, err := NewJoined(failing{memorystore.New()}, nil); err == nil {
		t.Error("NewJoined(store, nil) = <nil>, want an error")
	}
	if _, err := New(memorystore.New(), ringOf(t, "k1"), nil); err != nil {
		t.Errorf("New(store, ring, nil) = %v, want <nil>", err)
	}
	for name, wire := range map[string]func(){
		"MustNew": func() { MustNew(nil, nil) }, "MustNewJoined": func() { MustNewJoined(nil, nil) }, "MustNewRing": func() { MustNewRing(Key{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s() with wrong wiring did not panic", name)
				}
			}()
			wire()
		}()
	}
	if MustNew(memorystore.New(), MustNewRing(ringOf(t, "k1").keys[0])) == nil {
		t.Error("MustNew() = <nil>, want a store")
	}
}

// Redis holds nothing of a sealed response. The same search finds a plain response.
func TestRedisHoldsNothingOfResponses(t *testing.T) {
	open, raw := onRedis(t)
	s := over(t, open(), ringOf(t, "k1"))
	large := payment()
	large.Body = bytes.Repeat(large.Body, 200) // has a key of its own
	for _, resp := range []*driver.Response{payment(), large} {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown, driver.StateReleased} {
			stored(t, s, state, resp)
		}
		omitted := *resp
		omitted.Omitted = true
		stored(t, s, driver.StateCompleted, &omitted)
		id, req := newRequest() // restored
		st := settlement(driver.Attempt{Number: 2, Fence: req.Fence, Nonce: req.Nonce}, driver.StateCompleted, resp)
		st.Repair, st.LeaseTrusted = &driver.Repair{Route: req.Route, Fingerprint: req.Fingerprint, Started: time.Now()}, true
		if res, err := s.Settle(t.Context(), id, st); err != nil || !res.Settled || !reflect.DeepEqual(res.Record.Response, resp) {
			t.Fatalf("Settle() of a missing record = %+v, %v, want it settled", res, err)
		}
		if rec, err := s.Get(t.Context(), id); err != nil || !reflect.DeepEqual(rec.Response, resp) || rec.Attempt != st.Attempt {
			t.Errorf("Get() of a restored record = %+v, %v, want the response", rec, err)
		}
	}
	all := raw()
	if !bytes.Contains(all, []byte(Marker)) || !bytes.Contains(all, []byte("http POST /v1/payments")) {
		t.Fatalf("%d bytes of Redis without a marker: the look is broken", len(all))
	}
	for _, secret := range []string{"pay_secret", "body secret", "trailer secret", "Content-Type", "application/json", "Location", "grpc-status-details-bin"} {
		if i := bytes.Index(all, []byte(secret)); i >= 0 {
			t.Errorf("Redis holds %q: %q", secret, all[max(0, i-100):i+len(secret)])
		}
	}
	stored(t, open(), driver.StateCompleted, payment())
	if !bytes.Contains(raw(), []byte("trailer secret")) {
		t.Error("a plain response is not found: the look is broken")
	}
}

// The attempt that a response is sealed for is the stored one in every case, as
// all backends return it; else it could not be opened.
func TestAttemptComesBackAsItWasSettled(t *testing.T) {
	openRedis, _ := onRedis(t)
	for name, open := range map[string]func() driver.Store{"memory": func() driver.Store { return memorystore.New() }, "redis": openRedis} {
		t.Run(name, func(t *testing.T) {
			sp := &spy{Store: open()}
			s := over(t, sp, ringOf(t, "k1"))
			check := func(what string, id driver.KeyID) {
				t.Helper()
				rec, err := s.Get(t.Context(), id)
				last := sp.settled[len(sp.settled)-1]
				if err != nil || rec.Attempt != last.Attempt || !reflect.DeepEqual(rec.Response, payment()) {
					t.Errorf("%s: Get() = attempt %+v, %+v, %v, want %+v and the payment", what, rec.Attempt, rec.Response, err, last.Attempt)
				}
			}
			for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
				id, a := stored(t, s, state, payment())
				check("settled as "+state.String(), id)
				if state == driver.StateUnknown {
					if _, err := s.Settle(t.Context(), id, settlement(a, driver.StateCompleted, payment())); err != nil {
						t.Fatal(err)
					}
					check("decided", id)
				}
				id, req := newRequest()
				// The longest domain and the largest numbers.
				st := settlement(driver.Attempt{Number: ^uint32(0), Nonce: req.Nonce,
					Fence: driver.Fence{Domain: strings.Repeat("d", 255), Token: ^uint64(0)}}, state, payment())
				st.Repair = &driver.Repair{Started: time.Now()}
				if _, err := s.Settle(t.Context(), id, st); err != nil {
					t.Fatal(err)
				}
				check("restored as "+state.String(), id)
			}
		})
	}
}

// unreadable are stores whose responses a store with ring k1 cannot open.
var unreadable = []struct {
	name  string
	write func(tb testing.TB, inner driver.Store) driver.Store
	says  string
}{
	{"another ring", func(tb testing.TB, inner driver.Store) driver.Store { return over(tb, inner, ringOf(tb, "k9")) }, `"k9"`},
	{"plain", func(_ testing.TB, inner driver.Store) driver.Store { return inner }, "not sealed"},
	{"tampered with", func(tb testing.TB, inner driver.Store) driver.Store {
		return tamperer{inner, ringOf(tb, "k1"), func(b []byte) { b[len(b)-1]++ }}
	}, "changed"},
	{"of a later build", func(tb testing.TB, inner driver.Store) driver.Store {
		return tamperer{inner, ringOf(tb, "k1"), func(b []byte) { b[0]++ }}
	}, fmt.Sprintf("of version %d", version+1)},
}

// tamperer changes the body of each sealed response.
type tamperer struct {
	driver.Store
	ring   *Ring
	change func(body []byte)
}

func (s tamperer) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	sealed, err := s.ring.seal(place{id, st.Attempt}, st.Response)
	if err != nil {
		return driver.SettleResult{}, err
	}
	s.change(sealed.Body)
	st.Response = sealed
	return s.Store.Settle(ctx, id, st)
}

func TestUnreadableResponses(t *testing.T) {
	omitted := &driver.Response{Status: 201, Omitted: true}
	for _, tt := range unreadable {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			inner := memorystore.New()
			var log bytes.Buffer
			s := over(t, inner, ringOf(t, "k1"), WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithLogger(nil))
			warned := func(call string) {
				t.Helper()
				if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "call="+call) || !strings.Contains(strings.ReplaceAll(got, `\`, ""), tt.says) {
					t.Errorf("%s has logged %q, want one line that says %q", call, got, tt.says)
				}
				log.Reset()
			}

			id, a := stored(t, tt.write(t, inner), driver.StateCompleted, payment())
			rec, err := s.Get(ctx, id)
			if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Get(completed) = %v, want ErrUnavailable and %q", err, tt.says)
			}
			if rec.State != driver.StateCompleted || rec.Attempt != a || !reflect.DeepEqual(rec.Response, omitted) {
				t.Errorf("Get(completed) = %+v beside the error, want the record without its response", rec)
			}
			if log.Len() > 0 {
				t.Errorf("Get(completed) has logged %q beside its error", log.String())
			}
			_, req := newRequest()
			res, err := s.Begin(ctx, id, req)
			if err != nil || res.Begun || res.Record.State != driver.StateCompleted || !reflect.DeepEqual(res.Record.Response, omitted) {
				t.Errorf("Begin(completed) = %+v, %v, want the record without its response", res, err)
			}
			warned("begin")
			if rec, err := s.Issue(ctx, id, time.Hour); err != nil || !reflect.DeepEqual(rec.Response, omitted) {
				t.Errorf("Issue(completed) = %+v, %v, want the record without its response", rec, err)
			}
			warned("issue")
			got, err := s.Settle(ctx, id, settlement(a, driver.StateCompleted, payment()))
			if err != nil || got.Settled || !reflect.DeepEqual(got.Record.Response, omitted) {
				t.Errorf("Settle(completed) = %+v, %v, want somebody else's, without its response", got, err)
			}
			warned("settle")

			id, a = stored(t, tt.write(t, inner), driver.StateUnknown, payment())
			rec, err = s.Get(ctx, id)
			if err != nil || rec.State != driver.StateUnknown || !reflect.DeepEqual(rec.Response, omitted) {
				t.Errorf("Get(unknown) = %+v, %v, want the record without its response", rec, err)
			}
			warned("get")
			page, err := s.ListOpen(ctx, driver.OpenQuery{})
			list := page.Records
			if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0].Record.Response, omitted) {
				t.Errorf("Open() = %+v, %v, want one record without its response", list, err)
			}
			warned("open")
			// Nothing was changed by looking, and it can be decided.
			if before, err := inner.Get(ctx, id); err != nil || bare(before.Response) {
				t.Errorf("stored response = %+v, %v, want it as it was", before.Response, err)
			}
			if got, err := s.Settle(ctx, id, settlement(a, driver.StateCompleted, payment())); err != nil || !got.Settled {
				t.Errorf("Settle(unknown) = %+v, %v, want it settled", got, err)
			}
			if rec, err := s.Get(ctx, id); err != nil || !reflect.DeepEqual(rec.Response, payment()) {
				t.Errorf("Get() after the decision = %+v, %v, want the payment", rec.Response, err)
			}
		})
	}
}

func TestPlainResponsesAreAcceptedForAMigration(t *testing.T) {
	inner := memorystore.New()
	id, _ := stored(t, inner, driver.StateCompleted, payment())
	s := over(t, inner, ringOf(t, "k1"), WithPlain())
	if rec, err := s.Get(t.Context(), id); err != nil || !reflect.DeepEqual(rec.Response, payment()) {
		t.Errorf("Get(plain) = %+v, %v, want the payment", rec.Response, err)
	}
	sealed, _ := stored(t, s, driver.StateCompleted, payment())
	if rec, err := inner.Get(t.Context(), sealed); err != nil || !marked(rec.Response) {
		t.Errorf("a new response is stored as %+v, %v, want it sealed", rec.Response, err)
	}
	foreign, _ := stored(t, over(t, inner, ringOf(t, "k9")), driver.StateCompleted, payment())
	if _, err := s.Get(t.Context(), foreign); !errors.Is(err, ErrUnreadable) {
		t.Errorf("Get(sealed by another ring) = %v, want %v", err, ErrUnreadable)
	}
}

// A writer of the store moves a sealed response to another key. It is not handed out,
// neither for its own attempt nor for the other's.
func TestResponseMovedInTheStore(t *testing.T) {
	sp := &spy{Store: memorystore.New()}
	s := over(t, sp, ringOf(t, "k1"))
	from, _ := stored(t, s, driver.StateCompleted, payment())
	stolen, err := sp.Store.Get(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	to, _ := stored(t, s, driver.StateCompleted, &driver.Response{Status: 201, Body: []byte("theirs")})
	for name, change := range map[string]func(*driver.Record){
		"response":              func(r *driver.Record) { r.Response = stolen.Response },
		"response with attempt": func(r *driver.Record) { r.Response, r.Attempt = stolen.Response, stolen.Attempt },
		"attempt":               func(r *driver.Record) { r.Attempt.Number++ },
	} {
		sp.change = change
		if rec, err := s.Get(t.Context(), to); !errors.Is(err, ErrUnreadable) || len(rec.Response.Body) > 0 {
			t.Errorf("moved %s: Get() = %+v, %v, want %v", name, rec.Response, err, ErrUnreadable)
		}
	}
	sp.change = nil
	if rec, err := s.Get(t.Context(), to); err != nil || string(rec.Response.Body) != "theirs" {
		t.Errorf("Get() = %+v, %v, want what is theirs", rec.Response, err)
	}
}

// full is a store that can hold no response above a length.
type full struct {
	driver.Store
	most int
}

func (s full) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if st.Response != nil && len(st.Response.Body) > s.most {
		return driver.SettleResult{}, fmt.Errorf("full: %w", driver.ErrResponseInvalid)
	}
	return s.Store.Settle(ctx, id, st)
}

func TestTooLongOnceSealed(t *testing.T) {
	s := over(t, full{memorystore.New(), 100}, ringOf(t, "k1"))
	id, req := newRequest()
	res, err := s.Begin(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	st := settlement(res.Record.Attempt, driver.StateCompleted, &driver.Response{Status: 200, Body: make([]byte, 90)})
	if _, err := s.Settle(t.Context(), id, st); !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Settle(too long) = %v, want %v", err, driver.ErrResponseInvalid)
	}
	st.Response = &driver.Response{Header: map[string][]string{"X": make([]string, 5000)}}
	if _, err := s.Settle(t.Context(), id, st); !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Settle(too many values) = %v, want %v", err, driver.ErrResponseInvalid)
	}
	st.Response = &driver.Response{Status: 200, Omitted: true} // as the engine does next
	if got, err := s.Settle(t.Context(), id, st); err != nil || !got.Settled || got.Record.Response != st.Response {
		t.Errorf("Settle(omitted) = %+v, %v, want it settled", got, err)
	}
}

func TestConcurrentUse(t *testing.T) {
	ring := ringOf(t, "k2", "k1")
	inner := memorystore.New()
	old, both := over(t, inner, ringOf(t, "k1")), over(t, inner, ring)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 100 {
				s := []*Store{old, both}[(i+j)%2]
				want := &driver.Response{Status: 200, Body: fmt.Appendf(nil, "%d of %d", j, i)}
				id, _ := stored(t, s, driver.StateCompleted, want)
				if rec, err := both.Get(context.Background(), id); err != nil || !reflect.DeepEqual(rec.Response, want) {
					t.Errorf("Get() = %+v, %v, want %s", rec.Response, err, want.Body)
				}
				_ = ring.String()
			}
		})
	}
	wg.Wait()
}

func BenchmarkStore(b *testing.B) {
	ring := ringOf(b, "k1")
	idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(tb testing.TB) driver.Store { return over(tb, memorystore.New(), ring) }})
}
