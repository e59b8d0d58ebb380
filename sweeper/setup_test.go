package sweeper_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/sweeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// bundle is a service with its sweepers, on in-process parts and a fake clock.
type bundle struct {
	*testing.T
	locker *memorylock.Locker
	store  *idemtest.FaultyStore
	engine *idem.Engine
	listed driver.Store // the sweepers' store, if a test puts another one before store
	policy idem.Policy
	inbox  *inbox

	mu     sync.Mutex
	passes []sweeper.Pass
	asked  map[driver.KeyID]int
}

// resolver counts how often it is asked about a key.
func (b *bundle) resolver(verdict func(context.Context, idem.Interrupted) (idem.Resolution, error)) idem.Resolver {
	return func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
		b.mu.Lock()
		b.asked[in.KeyID]++
		b.mu.Unlock()
		return verdict(ctx, in)
	}
}

func setup(t *testing.T, verdict func(context.Context, idem.Interrupted) (idem.Resolution, error)) *bundle {
	t.Helper()
	b := &bundle{T: t, locker: memorylock.New(), store: idemtest.NewFaultyStore(memorystore.New()),
		inbox: &inbox{known: map[string]bool{}}, asked: map[driver.KeyID]int{}}
	engine, err := idem.New(b.locker, b.store)
	if err != nil {
		t.Fatal(err)
	}
	b.engine, b.listed = engine, b.store
	b.policy = idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	if verdict != nil {
		b.policy.InDoubt = idem.AskResolver(b.resolver(verdict))
	}
	return b
}

func says(r idem.Resolution) func(context.Context, idem.Interrupted) (idem.Resolution, error) {
	return func(context.Context, idem.Interrupted) (idem.Resolution, error) { return r, nil }
}

// run starts a sweeper, and returns how to end it.
func (b *bundle) run(opts ...sweeper.Option) (stop func()) {
	b.Helper()
	return b.runWith([]idem.Policy{b.policy}, opts...)
}

func (b *bundle) runWith(policies []idem.Policy, opts ...sweeper.Option) (stop func()) {
	b.Helper()
	opts = append([]sweeper.Option{sweeper.WithInbox(b.inbox), sweeper.WithObserver(b.observe), nil}, opts...)
	s, err := sweeper.New(b.engine, policies, opts...)
	if err != nil {
		b.Fatal(err)
	}
	s.List(b.listed)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return func() { cancel(); <-done }
}

func (b *bundle) observe(_ context.Context, p sweeper.Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passes = append(b.passes, p)
}

// sum adds up all passes.
func (b *bundle) sum() (sum sweeper.Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.passes {
		sum.Looked += p.Looked
		sum.Deferred += p.Deferred
		sum.Held += p.Held
		sum.Left += p.Left
		sum.Applied += p.Applied
		sum.Released += p.Released
		sum.Unknown += p.Unknown
		sum.Queued += p.Queued
		sum.Unqueued += p.Unqueued
		sum.Failed += p.Failed
		sum.Newer += p.Newer
		sum.Corrupt += p.Corrupt
	}
	return sum
}

func idOf(key string) driver.KeyID { return idem.NewKeyID("", idem.Key(key)) }

// begin starts an attempt and returns its lease, like a holder.
func (b *bundle) begin(key string) driver.Lease {
	b.Helper()
	return b.beginOn("POST /pay", key)
}

func (b *bundle) beginOn(route, key string) driver.Lease {
	b.Helper()
	lease, err := b.locker.TryAcquire(b.Context(), driver.LockRequest{KeyID: idOf(key), Nonce: driver.NewNonce()})
	if err != nil {
		b.Fatal(err)
	}
	fp, err := idem.NewFingerprint(1, "POST /pay", "body")
	if err != nil {
		b.Fatal(err)
	}
	got, err := b.store.Begin(b.Context(), idOf(key), driver.BeginRequest{Route: route, Fence: lease.Fence(), Nonce: driver.NewNonce(), Fingerprint: fp,
		ResultTTL: b.policy.ResultTTL, KeyTTL: b.policy.KeyTTL})
	if err != nil || !got.Begun {
		b.Fatalf("Begin() = %+v, %v", got, err)
	}
	return lease
}

// interrupted leaves what a holder leaves that began and died.
func (b *bundle) interrupted(key string) { b.begin(key).ReleaseInBackground() }

func (b *bundle) wantState(key string, state driver.State) driver.Record {
	b.Helper()
	rec, err := b.store.Get(b.Context(), idOf(key))
	if err != nil || rec.State != state {
		b.Fatalf("%s is %v, %v; want %v", key, rec.State, err, state)
	}
	return rec
}

// hooked is a store with places to break it.
type hooked struct {
	driver.Store
	get  func(ctx context.Context, id driver.KeyID) error      // its error is that of Get
	list func(q driver.OpenQuery, page *driver.OpenPage) error // may change the page, and its error is that of ListOpen
}

func (s *hooked) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if s.get != nil {
		if err := s.get(ctx, id); err != nil {
			return driver.Record{}, err
		}
	}
	return s.Store.Get(ctx, id)
}

func (s *hooked) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := s.Store.ListOpen(ctx, q)
	if err == nil && s.list != nil {
		err = s.list(q, &page)
	}
	return page, err
}

// engineOn has the engine use another store before that of the bundle.
func (b *bundle) engineOn(s *hooked) {
	b.Helper()
	s.Store = b.store
	var err error
	if b.engine, err = idem.New(b.locker, s); err != nil {
		b.Fatal(err)
	}
}

// on is engineOn for the engine and the sweepers.
func (b *bundle) on(s *hooked) {
	b.Helper()
	b.engineOn(s)
	b.listed = s
}

// inbox is an [sweeper.Inbox] in memory.
type inbox struct {
	mu     sync.Mutex
	known  map[string]bool
	cases  []sweeper.Case
	breaks func(call string) error // offer, names or forget
}

// fails has all calls fail, or none.
func (in *inbox) fails(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.breaks = func(string) error { return err }
}

func (in *inbox) broken(call string) error {
	if in.breaks == nil {
		return nil
	}
	return in.breaks(call)
}

func (in *inbox) OfferNamed(_ context.Context, id string, data []byte) (bool, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.broken("offer"); err != nil || in.known[id] {
		return false, err
	}
	var c sweeper.Case
	if err := json.Unmarshal(data, &c); err != nil {
		return false, err
	}
	in.known[id] = true
	in.cases = append(in.cases, c)
	return true, nil
}

func (in *inbox) Names(context.Context) (ids []string, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Keys(in.known)), in.broken("names")
}

func (in *inbox) ForgetName(_ context.Context, id string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.broken("forget"); err != nil {
		return err
	}
	delete(in.known, id)
	return nil
}

func (in *inbox) size() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.cases)
}
