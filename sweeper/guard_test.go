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

// breaking is a store or an inbox of an application that panics until its time comes.
type breaking struct {
	driver.Store
	*inbox
	until time.Time
}

func (b *breaking) broken() {
	if time.Now().Before(b.until) {
		panic("boom")
	}
}

func (b *breaking) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	b.broken()
	return b.Store.ListOpen(ctx, q)
}

func (b *breaking) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	b.broken()
	return b.Store.Get(ctx, id)
}

func (b *breaking) OfferNamed(ctx context.Context, id string, data []byte) (bool, error) {
	b.broken()
	return b.inbox.OfferNamed(ctx, id, data)
}

func (b *breaking) Names(ctx context.Context) ([]string, error) {
	b.broken()
	return b.inbox.Names(ctx)
}

func (b *breaking) ForgetName(ctx context.Context, id string) error {
	b.broken()
	return b.inbox.ForgetName(ctx, id)
}

// What the application gives the sweeper may panic, such as a hook of the client of its store. That ends
// neither the process nor the sweep, an observer hears of it, and the sweeper tries again.
func TestPanicsAroundTheSweeper(t *testing.T) {
	for name, use := range map[string]func(b *bundle, app *breaking) []sweeper.Option{
		"the store": func(b *bundle, app *breaking) []sweeper.Option {
			b.listed = app
			return nil
		},
		"the inbox": func(b *bundle, app *breaking) []sweeper.Option {
			b.inbox.known[idOf("settled").String()+"-1-00000000"] = true // so that a name is forgotten
			return []sweeper.Option{sweeper.WithInbox(app)}
		},
		"a chore": func(_ *bundle, app *breaking) []sweeper.Option {
			return []sweeper.Option{sweeper.WithChore(time.Minute, func(context.Context) error { app.broken(); return nil })}
		},
		"the election": func(_ *bundle, app *breaking) []sweeper.Option {
			return []sweeper.Option{sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
				app.broken()
				return term(ctx)
			})}
		},
		"an observer": func(_ *bundle, app *breaking) []sweeper.Option {
			return []sweeper.Option{sweeper.WithObserver(func(context.Context, sweeper.Pass) { app.broken() })}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, says(idem.Applied(idem.Response{Status: 201})))
				b.old("paid")
				undecided := idem.Policy{Name: "POST /undecided", AllowGlobalKeys: true, InDoubt: idem.AskResolver(says(idem.StillUnknown()))}
				b.beginOn(undecided.Name, "undecided").ReleaseInBackground()
				time.Sleep(time.Minute)
				app := &breaking{Store: b.store, inbox: b.inbox, until: time.Now().Add(time.Minute)}
				stop := b.runWith([]idem.Policy{b.policy, undecided}, use(b, app)...)
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
