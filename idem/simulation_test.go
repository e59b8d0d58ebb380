package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// TestNothingRunsTwiceUnderFaults sends every key many times through three
// engines on one lock and store, with every call failing now and then in every
// way and leases lost at random, to a ledger that checks fences. No key is paid
// twice, and all answers of a key are the same.
func TestNothingRunsTwiceUnderFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ledger := &ledger{paid: map[string][]string{}, fences: map[string]driver.Fence{}}
	b := setup(t, parts{
		opts: []idem.Option{idem.WithSettleTimeout(time.Millisecond), idem.WithStoreTimeout(patience)},
		policy: func(p *idem.Policy) {
			p.InDoubt = idem.AskResolver(ledger.resolve)
			p.ResolverTimeout = patience
		},
	})
	engines := []*idem.Engine{b.engine}
	flaky := []*idemtest.FaultyStore{b.faults}
	for range 2 {
		faults := idemtest.NewFaultyStore(b.store)
		e, err := idem.New(b.locks, faults, idem.WithSettleTimeout(time.Millisecond), idem.WithStoreTimeout(patience), idem.WithObserver(b.observe))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := e.Close(ctx); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		engines, flaky = append(engines, e), append(flaky, faults)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, faults := range flaky {
		for call := 1; call < 2000; call++ {
			for _, method := range []string{"Get", "Begin", "Settle", "Abort"} {
				switch rnd.IntN(20) {
				case 0:
					faults.FailBefore(method, call, nil)
				case 1:
					faults.LoseReply(method, call, nil)
				case 2:
					late := faults.DeliverLate(method, call, nil)
					if rnd.IntN(2) == 0 {
						go func() { // delivered by a later request, or never
							select {
							case <-late.Arrived():
								_ = late.Deliver()
							case <-t.Context().Done():
							}
						}()
					}
				}
			}
		}
	}
	const keys, clients = 24, 8
	answers := make([]map[string]bool, keys)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(c)+2))
		wg.Go(func() {
			for _, k := range rnd.Perm(keys) {
				key := fmt.Sprintf("k%d", k)
				for try := 0; ; try++ {
					res, err := engines[rnd.IntN(len(engines))].Do(context.Background(), b.operation(key, "a"),
						func(ctx context.Context) (idem.Response, error) {
							if rand.IntN(4) == 0 { // a zombie: it is paused, and others come by
								b.locker.Revoke(idem.NewKeyID("m1", idem.Key(key)))
								time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
							}
							return ledger.pay(ctx, key)
						})
					if err == nil && res.Response.Status == 201 {
						mu.Lock()
						if answers[k] == nil {
							answers[k] = map[string]bool{}
						}
						answers[k][string(res.Response.Body)] = true
						mu.Unlock()
						break
					}
					if try == 10000 {
						t.Errorf("%s: no success after %d tries: %v %v", key, try, res.Response.Status, err)
						break
					}
					time.Sleep(time.Duration(rnd.IntN(1000)) * time.Microsecond) // a client's pause, not a wait
				}
			}
		})
	}
	wg.Wait()
	for k := range keys {
		key := fmt.Sprintf("k%d", k)
		if n := len(ledger.paid[key]); n != 1 {
			t.Errorf("%s was paid %d times, want once", key, n)
		}
		if len(answers[k]) != 1 {
			t.Errorf("%s got answers %v, want one", key, answers[k])
		}
	}
}

// ledger is a resource that checks fences, and fails in doubt now and then.
type ledger struct {
	mu     sync.Mutex
	paid   map[string][]string
	fences map[string]driver.Fence
}

func (l *ledger) raise(op string, f driver.Fence) error {
	if f.Before(l.fences[op]) {
		return errors.New("ledger: fence is behind")
	}
	l.fences[op] = f
	return nil
}

func (l *ledger) pay(ctx context.Context, key string) (idem.Response, error) {
	x, _ := idem.FromContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if rand.IntN(5) == 0 {
		return idem.Response{Status: 500}, nil // before it happened
	}
	if err := l.raise(x.OperationID, x.Fence); err != nil {
		return idem.Response{Status: 503}, nil
	}
	body := fmt.Sprintf("%s by attempt %d", x.OperationID, x.Attempt)
	l.paid[key] = append(l.paid[key], body)
	l.paid[x.OperationID] = append(l.paid[x.OperationID], body)
	if rand.IntN(5) == 0 {
		return idem.Response{Status: 500}, nil // after it happened
	}
	return idem.Response{Status: 201, Body: []byte(body)}, nil
}

func (l *ledger) resolve(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.raise(in.OperationID, in.Fence); err != nil {
		return idem.StillUnknown(), err
	}
	if paid := l.paid[in.OperationID]; len(paid) > 0 {
		return idem.Applied(idem.Response{Status: 201, Body: []byte(paid[0])}), nil
	}
	return idem.NotApplied(), nil
}
