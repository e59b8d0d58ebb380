package store

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// openStub is a token store with one page of open records, and a clock of its own.
type openStub struct {
	servers.Store
	now  time.Time
	page driver.OpenPage
}

func (s *openStub) Clock(context.Context) (time.Time, error) { return s.now, nil }

func (s *openStub) ListOpen(context.Context, driver.OpenQuery) (driver.OpenPage, error) {
	return s.page, nil
}

// A domain is silent by the clock of the store, which may be far from this one. A record that cannot
// be read may be of any domain.
func TestSilenceIsThatOfTheStore(t *testing.T) {
	const wait = silentFor * 10 * time.Second
	storesNow := time.Now().Add(-24 * time.Hour)
	of := func(domain string, age time.Duration, err error) driver.OpenRecord {
		return driver.OpenRecord{Err: err, Record: driver.Record{State: driver.StatePending, Started: storesNow.Add(-age), Attempt: driver.Attempt{Number: 1, Fence: driver.Fence{Domain: domain}}}}
	}
	for name, tt := range map[string]struct {
		open  driver.OpenRecord
		alive bool
	}{
		"began just now":         {of("d", time.Second, nil), true},
		"began long ago":         {of("d", wait, nil), false},
		"another domain":         {of("e", time.Second, nil), false},
		"unreadable":             {of("", time.Second, driver.ErrCorruptRecord), true},
		"unreadable since then":  {of("", wait, driver.ErrCorruptRecord), false},
		"of a newer build, live": {of("", time.Second, driver.ErrNewerRecord), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &domains{servers: &servers.Flags{ZooKeeper: servers.ZooKeeper{SessionTimeout: 10 * time.Second}}}
			b := &servers.Backends{Store: &openStub{now: storesNow, page: driver.OpenPage{Records: []driver.OpenRecord{tt.open}}}}
			err := c.checkSilent(t.Context(), b, "d")
			if alive := err != nil && strings.Contains(err.Error(), "may be alive"); alive != tt.alive || err != nil && !alive {
				t.Errorf("checkSilent() = %v, want a domain that may be alive: %t", err, tt.alive)
			}
		})
	}
}
