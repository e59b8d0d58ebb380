package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// first waits until the sweeper has done a pass, and returns it.
func (b *bundle) first() sweeper.Pass {
	b.Helper()
	time.Sleep(time.Second) // of the fake clock
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.passes) == 0 {
		b.Fatal("no pass in a second")
	}
	return b.passes[0]
}

// old leaves interrupted attempts that a pass looks at.
func (b *bundle) old(keys ...string) {
	b.Helper()
	for _, key := range keys {
		b.interrupted(key)
		time.Sleep(time.Millisecond) // so that they are listed in this order
	}
	time.Sleep(time.Minute)
}

// What a pass tells is what happened to its records.
func TestPassTellsWhatHappened(t *testing.T) {
	for name, tt := range map[string]struct {
		policies func(b *bundle) []idem.Policy
		want     sweeper.Pass
		reason   string // of the case
	}{
		"applied": {func(b *bundle) []idem.Policy {
			b.policy.InDoubt = idem.AskResolver(says(idem.Applied(idem.Response{Status: 201})))
			return []idem.Policy{b.policy}
		}, sweeper.Pass{Looked: 1, Applied: 1}, ""},
		"the resolver cannot tell": {func(b *bundle) []idem.Policy {
			b.policy.InDoubt = idem.AskResolver(says(idem.StillUnknown()))
			return []idem.Policy{b.policy}
		}, sweeper.Pass{Looked: 1, Unknown: 1, Queued: 1}, "the resolver cannot tell"},
		"no resolver": {func(b *bundle) []idem.Policy { return []idem.Policy{b.policy} },
			sweeper.Pass{Looked: 1, Unknown: 1, Queued: 1}, "the route has no resolver"},
		"a route without a policy": {func(b *bundle) []idem.Policy {
			b.policy.InDoubt = idem.AskResolver(says(idem.Applied(idem.Response{Status: 201})))
			b.policy.Name = "another route"
			return []idem.Policy{b.policy}
		}, sweeper.Pass{Looked: 1, Unknown: 1, Queued: 1}, "the route has no resolver"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, nil)
				b.old("k")
				defer b.runWith(tt.policies(b))()
				p := b.first()
				tt.want.Leader, tt.want.Duration = true, p.Duration
				if p != tt.want || p.Settled() != tt.want.Applied+tt.want.Released {
					t.Errorf("pass = %+v, want %+v", p, tt.want)
				}
				if tt.reason != "" && (b.inbox.size() != 1 || b.inbox.cases[0].Reason != tt.reason) {
					t.Errorf("cases = %+v, want the reason %q", b.inbox.cases, tt.reason)
				}
			})
		})
	}
}

// A record that is not due yet, or for whose resolver there is no room, counts as deferred.
func TestDeferredRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		b := setup(t, func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			<-hung
			return idem.StillUnknown(), nil
		})
		b.old("a", "b")
		stop := b.run(sweeper.WithWorkers(1))
		defer stop()
		defer close(hung)
		time.Sleep(time.Minute)
		b.mu.Lock()
		defer b.mu.Unlock()
		if p := b.passes[0]; p.Looked != 2 || p.Deferred != 1 || p.Unknown+p.Settled() != 0 {
			t.Errorf("first pass = %+v, want one record under way and one deferred", p)
		}
		busy := false
		for _, p := range b.passes[1:] {
			busy = busy || p.Err != nil && strings.Contains(p.Err.Error(), "too many resolvers")
			if p.Looked != 2 || p.Deferred == 0 || p.Settled() != 0 {
				t.Errorf("pass = %+v, want two records looked at", p)
			}
		}
		if !busy {
			t.Error("no pass tells that a resolver has not returned")
		}
	})
}

var errDown = errors.New("down")

// failing has the engine use a store that cannot read some keys.
func (b *bundle) failing(fails func(driver.KeyID) bool) {
	b.Helper()
	b.engineOn(&hooked{get: func(_ context.Context, id driver.KeyID) error {
		if fails(id) {
			return errDown
		}
		return nil
	}})
}

// A page of which every record fails does not end the pass.
func TestPassGoesOnAfterAPageThatFails(t *testing.T) {
	for name, bad := range map[string]string{
		"the whole first page": "a b", "one of the first page": "a", "one of the second": "c", "the first of each": "a c", "the whole second page": "a c d", "all but the last": "a b c d",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, says(idem.NotApplied()))
				b.old("a", "b", "c", "d", "e")
				var pages atomic.Int32
				b.failing(func(id driver.KeyID) bool {
					return slices.ContainsFunc(strings.Fields(bad), func(key string) bool { return id == idOf(key) })
				})
				b.listed = &hooked{Store: b.store, list: func(driver.OpenQuery, *driver.OpenPage) error { pages.Add(1); return nil }}
				defer b.run(sweeper.WithPage(2), sweeper.WithInterval(time.Hour))()
				p, failed := b.first(), len(strings.Fields(bad))
				if pages.Load() != 3 || p.Failed != failed || p.Settled() != 5-failed || !errors.Is(p.Err, errDown) {
					t.Errorf("%d pages, %+v; want 3 pages, %d failed and %d settled", pages.Load(), p, failed, 5-failed)
				}
			})
		})
	}
}

// A case stays known while its record is not listed, as after the store's clock was set back, or cannot be read. Otherwise
// people would get it twice.
func TestCaseIsKeptWhileItsRecordCannotBeRead(t *testing.T) {
	for name, down := range map[string]error{"it is hidden": nil, "the store is down": errDown} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, nil)
				var hidden atomic.Bool
				b.listed = &hooked{Store: b.store, list: func(_ driver.OpenQuery, page *driver.OpenPage) error {
					if hidden.Load() {
						*page = driver.OpenPage{}
					}
					return nil
				}, get: func(context.Context, driver.KeyID) error {
					if hidden.Load() {
						return down
					}
					return nil
				}}
				defer b.run()()
				b.interrupted("k")
				time.Sleep(time.Minute)
				hidden.Store(true)
				time.Sleep(time.Minute)
				hidden.Store(false)
				time.Sleep(10 * time.Minute)
				if n := b.inbox.size(); n != 1 {
					t.Errorf("%d cases of one attempt, want 1", n)
				}
			})
		})
	}
}

func TestSweeperWithoutAnInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.old("k")
		defer b.run(sweeper.WithInbox(nil))()
		if p := b.first(); p.Unknown != 1 || p.Queued+p.Unqueued != 0 || p.Err != nil {
			t.Errorf("pass = %+v, want one unknown record and no case", p)
		}
		b.wantState("k", driver.StateUnknown)
	})
}

// A record that changes between the listing and the look at it is no failure.
func TestRecordThatChangesAfterItWasListed(t *testing.T) {
	for name, tt := range map[string]struct {
		with error // the store returns it for the record
		want sweeper.Pass
	}{
		"settled":                    {idem.ErrNotOpen, sweeper.Pass{Looked: 1}},
		"rewritten by a newer build": {driver.ErrNewerRecord, sweeper.Pass{Looked: 1, Newer: 1, Yielded: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, says(idem.NotApplied()))
				b.old("k")
				b.on(&hooked{get: func(context.Context, driver.KeyID) error { return tt.with }})
				defer b.run()()
				p := b.first()
				tt.want.Leader, tt.want.Duration = true, p.Duration
				if p != tt.want {
					t.Errorf("pass = %+v, want %+v", p, tt.want)
				}
			})
		})
	}
}

// An inbox that does not list its names, or does not take a case, gets no more of them in this
// pass. One that forgets no name is asked for one only. All of this is told.
func TestInboxOfWhichSomeCallsFail(t *testing.T) {
	for name, tt := range map[string]struct {
		fails string   // the call
		open  []string // attempts in doubt
		known []string // names of cases whose attempts are settled
		want  sweeper.Pass
	}{
		"names":  {"names", []string{"a", "b"}, nil, sweeper.Pass{Looked: 2, Unknown: 2, Unqueued: 1}},
		"offer":  {"offer", []string{"a", "b"}, nil, sweeper.Pass{Looked: 2, Unknown: 2, Unqueued: 1}},
		"forget": {"forget", nil, []string{"one", "other"}, sweeper.Pass{Unqueued: 1}},
		"none":   {"", []string{"a", "b"}, []string{"one", "other"}, sweeper.Pass{Looked: 2, Unknown: 2, Queued: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, nil)
				b.old(tt.open...)
				for _, id := range tt.known {
					b.inbox.known[id] = true
				}
				b.inbox.breaks = func(call string) error {
					if call == tt.fails {
						return errDown
					}
					return nil
				}
				defer b.run(sweeper.WithWorkers(1))()
				p := b.first()
				want := tt.want
				want.Leader, want.Err, want.Duration = true, p.Err, p.Duration
				if p != want || (p.Err == nil) != (name == "none") || p.Err != nil && !errors.Is(p.Err, errDown) {
					t.Errorf("pass = %+v, want %+v and the reason of a failure", p, want)
				}
				if name == "none" && len(b.inbox.known) != len(tt.open) {
					t.Errorf("the inbox knows %v, want the open cases alone", b.inbox.known)
				}
			})
		})
	}
}

// The observer hears of an election that failed, and the sweeper stands for the next one.
func TestFailedElectionIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		tries := 0
		stop := b.run(sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			if tries++; tries == 1 {
				return errDown
			}
			return term(ctx)
		}))
		time.Sleep(time.Minute)
		stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, p := range b.passes {
			if i == 0 && (p.Leader || !errors.Is(p.Err, errDown)) || i > 0 && (!p.Leader || p.Err != nil) {
				t.Errorf("pass %d = %+v, want the failed election first, and then passes of a leader", i, p)
			}
		}
		if len(b.passes) < 25 || len(b.passes) > 31 {
			t.Errorf("%d passes in a minute, want one every 2 s", len(b.passes))
		}
	})
}

// The observer hears of each chore that failed, and of no other.
func TestFailedChoreIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		runs := 0
		stop := b.run(sweeper.WithChore(time.Minute, func(context.Context) error {
			if runs++; runs%2 == 0 {
				return fmt.Errorf("run %d: %w", runs, errDown)
			}
			return nil
		}))
		time.Sleep(4*time.Minute + time.Second)
		stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		var told []string
		for _, p := range b.passes {
			if p.Err != nil {
				told = append(told, fmt.Sprint(p.Leader, " ", p.Err))
			}
		}
		if want := "true sweeper: chore: run 2: down, true sweeper: chore: run 4: down"; strings.Join(told, ", ") != want {
			t.Errorf("told %q, want %s", told, want)
		}
	})
}
