package sweeper_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// What the application gives the sweeper may panic, such as a hook of the client of its store. That ends
// neither the process nor the sweep, an observer hears of it, and the sweeper tries again.
func TestPanicsAroundTheSweeper(t *testing.T) {
	for name, use := range map[string]func(b *bundle, broken func()) []sweeper.Option{
		"the store": func(b *bundle, broken func()) []sweeper.Option {
			b.listed = &hooked{Store: b.store, get: func(context.Context, driver.KeyID) error { broken(); return nil },
				list: func(driver.OpenQuery, *driver.OpenPage) error { broken(); return nil }}
			return nil
		},
		"the inbox": func(b *bundle, broken func()) []sweeper.Option {
			b.inbox.known[idOf("settled").String()+"-1-00000000"] = true // so that a name is forgotten
			b.inbox.breaks = func(string) error { broken(); return nil }
			return nil
		},
		"a chore": func(_ *bundle, broken func()) []sweeper.Option {
			return []sweeper.Option{sweeper.WithChore(time.Minute, func(context.Context) error { broken(); return nil })}
		},
		"the election": func(_ *bundle, broken func()) []sweeper.Option {
			return []sweeper.Option{sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
				broken()
				return term(ctx)
			})}
		},
		"an observer": func(_ *bundle, broken func()) []sweeper.Option {
			return []sweeper.Option{sweeper.WithObserver(func(context.Context, sweeper.Pass) { broken() })}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, says(idem.Applied(idem.Response{Status: 201})))
				b.old("paid")
				undecided := idem.Policy{Name: "POST /undecided", AllowGlobalKeys: true, InDoubt: idem.AskResolver(says(idem.StillUnknown()))}
				b.beginOn(undecided.Name, "undecided").ReleaseInBackground()
				time.Sleep(time.Minute)
				until := time.Now().Add(time.Minute)
				stop := b.runWith([]idem.Policy{b.policy, undecided}, use(b, func() {
					if time.Now().Before(until) {
						panic("boom")
					}
				})...)
				defer stop()
				time.Sleep(10 * time.Minute)
				b.wantState("paid", driver.StateCompleted)
				if b.inbox.size() != 1 {
					t.Errorf("the inbox has %d cases, want 1", b.inbox.size())
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				told := name == "an observer"
				for _, p := range b.passes {
					told = told || p.Err != nil && strings.Contains(p.Err.Error(), "panicked: boom")
				}
				if !told {
					t.Error("no pass tells of the panic")
				}
			})
		})
	}
}
