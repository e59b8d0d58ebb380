package idemtest

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// BenchmarkStore measures the calls of the engine to a store. They are a whole execution of a
// fresh key, the replay of a finished one, and the look at an unused key. Each runs one after
// the other and from many goroutines.
func BenchmarkStore(b *testing.B, h StoreHarness) {
	body := bytes.Repeat([]byte("x"), 180)
	var token atomic.Uint64
	token.Store(uint64(time.Now().UnixNano()))

	fresh := func(s driver.Store) func(b *testing.B) {
		return func(b *testing.B) {
			id := randomKeyID()
			ctx := b.Context()
			rec, err := s.Get(ctx, id)
			if err != nil || rec.State != driver.StateNone {
				b.Fatalf("Get(%v) = %v, %v, want none", id, rec.State, err)
			}
			res, err := s.Begin(ctx, id, storeRequest(driver.ClientKey, storeDomain, token.Add(1)))
			if err != nil || !res.Begun {
				b.Fatalf("Begin(%v) = %s, %v, want begun", id, describeBegin(res), err)
			}
			st := settlement(res.Record.Attempt, driver.StateCompleted)
			st.Response = &driver.Response{Status: 201, Body: body}
			if got, err := s.Settle(ctx, id, st); err != nil || !got.Settled {
				b.Fatalf("Settle(%v) = %v, %v, want settled", id, got.Settled, err)
			}
		}
	}
	stored := func(s driver.Store, id driver.KeyID, want driver.State) func(b *testing.B) {
		return func(b *testing.B) {
			if rec, err := s.Get(b.Context(), id); err != nil || rec.State != want {
				b.Fatalf("Get(%v) = %v, %v, want %v", id, rec.State, err, want)
			}
		}
	}
	for name, step := range map[string]func(b *testing.B, s driver.Store) func(b *testing.B){
		"fresh": func(_ *testing.B, s driver.Store) func(*testing.B) { return fresh(s) },
		"replay": func(b *testing.B, s driver.Store) func(*testing.B) {
			id := randomKeyID()
			res, err := s.Begin(b.Context(), id, storeRequest(driver.ClientKey, storeDomain, token.Add(1)))
			if err != nil {
				b.Fatalf("Begin(%v) = %v, want <nil>", id, err)
			}
			if _, err := s.Settle(b.Context(), id, settlement(res.Record.Attempt, driver.StateCompleted)); err != nil {
				b.Fatalf("Settle(%v) = %v, want <nil>", id, err)
			}
			return stored(s, id, driver.StateCompleted)
		},
		"absent": func(_ *testing.B, s driver.Store) func(*testing.B) {
			return stored(s, randomKeyID(), driver.StateNone)
		},
	} {
		b.Run(name, func(b *testing.B) {
			op := step(b, h.New(b))
			b.ReportAllocs()
			for b.Loop() {
				op(b)
			}
		})
		b.Run(name+"-parallel", func(b *testing.B) {
			op := step(b, h.New(b))
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					op(b)
				}
			})
		})
	}
}
