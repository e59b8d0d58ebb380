package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

// sharedLocker stands for a lock of which the instances of these tests know.
type sharedLocker struct{ *memorylock.Locker }

func (sharedLocker) Visibility() driver.Visibility { return driver.VisibilityShared }

// payment is a key of a payment, with the payments made under it.
type payment struct {
	id       driver.KeyID
	op       idem.Operation
	runs     atomic.Int64
	repaired atomic.Int64
	before   driver.Record // what the replica has of it
}

func newPayment(key idem.Key, policy idem.Policy) *payment {
	policy.Name = "pay"
	return &payment{id: idem.NewKeyID("m1", key), op: idem.Operation{Transport: idem.TransportHTTP, Scope: "m1", Key: key, Policy: &policy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay") }}}
}

func (p *payment) pay(context.Context) (idem.Response, error) {
	p.runs.Add(1)
	return idem.Response{Status: 201, Body: []byte("payment of " + p.op.Key)}, nil
}

// wantPaid requires the answer of the one payment.
func (p *payment) wantPaid(t *testing.T, what string, res idem.Result, err error, replayed bool) {
	t.Helper()
	if err != nil || res.Response.Status != 201 || string(res.Response.Body) != string("payment of "+p.op.Key) || res.Replayed != replayed {
		t.Errorf("%s of %q = %d %q, replayed %v, %v, want 201 and replayed %v", what, p.op.Key, res.Response.Status, res.Response.Body,
			res.Replayed, err, replayed)
	}
	if n := p.runs.Load(); n != 1 {
		t.Errorf("%s of %q: paid %d times, want once", what, p.op.Key, n)
	}
}

// interrupt leaves an attempt whose holder died.
func (p *payment) interrupt(t *testing.T, s *Store, locker sharedLocker) {
	t.Helper()
	kind := driver.ClientKey
	if p.op.Policy.IssuedTokens {
		kind = driver.IssuedToken
	}
	req := driver.BeginRequest{Kind: kind, Route: p.op.Policy.Name, Nonce: driver.NewNonce()}
	lease, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: p.id, Nonce: req.Nonce})
	if err != nil {
		t.Fatal(err)
	}
	req.Fence = lease.Fence()
	if req.Fingerprint, err = p.op.Fingerprint(idem.FingerprintVersion); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, s, p.id, req)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The primary dies while handlers run, and the replica that is promoted has what
// was there before their attempts began. The clients are told of their payments,
// so a retry at another instance has to be told of the same ones.
func TestFailoverUnderRunningHandlers(t *testing.T) {
	t.Parallel()
	servers := testserver.StartSentinel(t, 1)
	store, locker := open(t, connect(t, sentinelAddr(servers))), sharedLocker{memorylock.New()}
	notApplied := func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), nil }
	token := newPayment("token", idem.Policy{IssuedTokens: true, InDoubt: idem.LeaveUnknown()})
	released := newPayment("released", idem.Policy{InDoubt: idem.LeaveUnknown()})
	pending := newPayment("pending", idem.Policy{InDoubt: idem.AskResolver(notApplied)})
	all := []*payment{token, released, pending}
	instance := func(s *Store) *idem.Engine {
		e, err := idem.New(locker, s, idem.WithStoreTimeout(patient), idem.WithSettleTimeout(patient),
			idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
				for _, p := range all {
					if ev.Type == telemetry.EventRepaired && ev.KeyID == p.id {
						p.repaired.Add(1)
					}
				}
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(context.Background()); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		return e
	}
	engine, other := instance(store), instance(open(t, connect(t, sentinelAddr(servers))))

	if _, err := store.Issue(t.Context(), token.id, time.Hour); err != nil {
		t.Fatal(err)
	}
	declined := func(context.Context) (idem.Response, error) { return idem.Response{Status: 429}, nil }
	if _, err := engine.Do(t.Context(), released.op, declined); err != nil {
		t.Fatal(err)
	}
	pending.interrupt(t, store, locker)
	for p, want := range map[*payment]driver.State{token: driver.StateIssued, released: driver.StateReleased, pending: driver.StatePending} {
		var err error
		if p.before, err = store.Get(t.Context(), p.id); err != nil || p.before.State != want {
			t.Fatalf("Get(%q) = %v, %v, want %v", p.op.Key, p.before.State, err, want)
		}
	}
	primary, replica := servers.Primary(), servers.Replica()
	if err := primary.AwaitReplica(replica); err != nil {
		t.Fatal(err)
	}
	if err := replica.CutOff(primary); err != nil {
		t.Fatal(err)
	}

	running, finish := make(chan *payment), make(chan struct{})
	var answers sync.WaitGroup
	for _, p := range all {
		answers.Go(func() {
			res, err := engine.Do(t.Context(), p.op, func(ctx context.Context) (idem.Response, error) {
				running <- p
				<-finish
				return p.pay(ctx)
			})
			p.wantPaid(t, "payment", res, err, false)
		})
	}
	for range all {
		select {
		case <-running:
		case <-t.Context().Done():
			t.Fatal("a handler does not start")
		}
	}
	promote(t, servers)
	for _, p := range all {
		err := reached(t, func() error {
			rec, err := store.Get(t.Context(), p.id)
			if err == nil && (rec.State != p.before.State || rec.Attempt != p.before.Attempt) {
				t.Errorf("Get(%q) after the fail-over = %v of %v, want what the replica has: %v of %v", p.op.Key, rec.State, rec.Attempt,
					p.before.State, p.before.Attempt)
			}
			return err
		})
		if err != nil {
			t.Errorf("Get(%q) after the fail-over = %v", p.op.Key, err)
		}
	}
	close(finish)
	answers.Wait()
	for _, p := range all {
		for _, e := range []*idem.Engine{engine, other} {
			var res idem.Result
			err := reached(t, func() (err error) { res, err = e.Do(t.Context(), p.op, p.pay); return err })
			p.wantPaid(t, "retry", res, err, true)
		}
		if n := p.repaired.Load(); n != 1 {
			t.Errorf("%d repairs of %q, want 1", n, p.op.Key)
		}
	}
}
