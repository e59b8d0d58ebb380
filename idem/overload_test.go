package idem_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// queued is a store on one server with a queue. Each call takes the server the same time, also if its
// caller has left meanwhile.
type queued struct {
	driver.Store
	service time.Duration

	mu   sync.Mutex
	free time.Time // when the server has done all its calls
	gets int
}

// stall stops the server for a while.
func (s *queued) stall(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = later(s.free, time.Now()).Add(d)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// queue waits for the server.
func (s *queued) queue(ctx context.Context) error {
	s.mu.Lock()
	s.free = later(s.free, time.Now()).Add(s.service)
	wait := time.Until(s.free)
	s.mu.Unlock()
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		time.Sleep(time.Until(deadline))
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, context.DeadlineExceeded)
	}
	time.Sleep(wait)
	return nil
}

func (s *queued) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	s.mu.Lock()
	s.gets++
	s.mu.Unlock()
	if err := s.queue(ctx); err != nil {
		return driver.Record{}, err
	}
	return s.Store.Get(ctx, id)
}

func (s *queued) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	err := s.queue(ctx)
	res, storeErr := s.Store.Begin(context.WithoutCancel(ctx), id, req) // late, if the caller has left
	if err != nil {
		return driver.BeginResult{}, err
	}
	return res, storeErr
}

func (s *queued) Settle(ctx context.Context, id driver.KeyID, settlement driver.Settlement) (driver.SettleResult, error) {
	err := s.queue(ctx)
	res, storeErr := s.Store.Settle(context.WithoutCancel(ctx), id, settlement)
	if err != nil {
		return driver.SettleResult{}, err
	}
	return res, storeErr
}

func (s *queued) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	err := s.queue(ctx)
	storeErr := s.Store.Abort(context.WithoutCancel(ctx), id, req)
	if err != nil {
		return err
	}
	return storeErr
}

// TestServiceRecoversFromAStall: a store that is busy stands still for a second. Requests with keys of
// their own do not keep its queue long. They read the record once.
func TestServiceRecoversFromAStall(t *testing.T) {
	for load, within := range map[float64]time.Duration{0.8: 10 * time.Second, 0.9: 30 * time.Second} {
		t.Run(fmt.Sprint(load), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stall(t, load, within) })
		})
	}
}

func stall(t *testing.T, load float64, within time.Duration) {
	const (
		rate   = 500 // requests a second
		calls  = 3   // of the store, for each of them
		before = 3 * time.Second
		window = 2 * time.Second
	)
	store := &queued{Store: memorystore.New(), service: time.Duration(load / rate / calls * float64(time.Second))}
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		t.Fatal(err)
	}
	policy := withDefaults(t, idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	var mu sync.Mutex
	type answer struct {
		at, took time.Duration // since the start, for the request
		err      error
	}
	var answers []answer
	var requests sync.WaitGroup
	started, sent, stalled := time.Now(), 0, false
	random := rand.New(rand.NewPCG(1, 2))
	pay := func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil }
	for end := before + time.Second + within + window; time.Since(started) < end; sent++ {
		if !stalled && time.Since(started) >= before {
			stalled = true
			store.stall(time.Second)
		}
		key := idem.Key(fmt.Sprint("key-", sent))
		requests.Go(func() {
			asked := time.Now()
			_, err := engine.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &policy, Fingerprint: fingerprintOf("http", "a")}, pay)
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, answer{asked.Sub(started), time.Since(asked), err})
		})
		time.Sleep(time.Duration(-math.Log(1-random.Float64()) / rate * float64(time.Second)))
	}
	requests.Wait()
	if err := engine.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	p99 := func(from time.Duration) (p99 time.Duration, failed int) {
		var took []time.Duration
		for _, a := range answers {
			if a.at >= from && a.at < from+window {
				took = append(took, a.took)
				if a.err != nil {
					failed++
				}
			}
		}
		slices.Sort(took)
		return took[len(took)*99/100], failed
	}
	usual, _ := p99(before - window)
	after, failed := p99(before + time.Second + within)
	if failed > 0 || after > 2*usual {
		t.Errorf("%v after the stall: p99 = %v and %d failed, want at most twice %v as before, and none", within, after, failed, usual)
	}
	if store.gets > sent+sent/50 {
		t.Errorf("%d reads for %d requests, want at most 2 %% more", store.gets, sent)
	}
}
