package idemtest_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// storeMutantVariable names the broken store for the suite in a child process.
const storeMutantVariable = "IDEMTEST_STORE_MUTANT"

// storeMutants are stores with one fault each, and the subtest for it.
var storeMutants = map[string]struct {
	caughtBy string
	mutant   storeMutant
}{
	"fences are doubles": {"fence/fences are compared to their last bit", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			req.Fence.Token = uint64(float64(req.Fence.Token/2)) * 2
			return s.Begin(context.Background(), id, req)
		},
	}},
	"fences of other domains count": {"fence/fences of different domains are not compared", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			req.Fence.Domain = "one for all"
			return s.Begin(context.Background(), id, req)
		},
	}},
	"a Begin makes a token": {"begin/none, issued token: not begun", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			if req.Kind == driver.IssuedToken {
				_, _ = s.Issue(context.Background(), id, time.Hour)
			}
			return s.Begin(context.Background(), id, req)
		},
	}},
	"everybody begins": {"concurrency/one of many begins", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			res, err := s.Begin(context.Background(), id, req)
			res.Begun = err == nil
			return res, err
		},
	}},
	"a Begin begins once": {"resend/Begin", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			if rec, _ := s.Get(context.Background(), id); rec.State == driver.StatePending {
				return driver.BeginResult{Record: rec}, nil
			}
			return s.Begin(context.Background(), id, req)
		},
	}},
	"a settlement stands by its state": {"resend/Settle by two to the same state", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			res, err := s.Settle(context.Background(), id, st)
			res.Settled = res.Settled || res.Record.State == st.State
			return res, err
		},
	}},
	"the last settlement wins": {"settle/the holder comes too late after a decision", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			res, err := s.Settle(context.Background(), id, st)
			if st.State == driver.StateCompleted {
				res.Settled = true
			}
			return res, err
		},
	}},
	"a decision is lost": {"settle/a decision is kept", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			st.Decision.Reason = ""
			return s.Settle(context.Background(), id, st)
		},
	}},
	"a lost record stays lost": {"restore/a missing record is written anew", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			st.Repair = nil
			return s.Settle(context.Background(), id, st)
		},
	}},
	"results do not expire": {"expiry/a result goes, then its key", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			st.ResultTTL = st.KeyTTL
			return s.Settle(context.Background(), id, st)
		},
	}},
	"milliseconds are seconds": {"expiry/a result goes, then its key", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			st.ResultTTL, st.KeyTTL = st.ResultTTL/1000, st.KeyTTL/1000
			return s.Settle(context.Background(), id, st)
		},
	}},
	"the author of a settlement forgets the route": {"remember/a shorter settlement keeps the times of the record", storeMutant{
		begin: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
			if req.RunAgainFrom == nil {
				req.ResultTTL, req.KeyTTL = 0, 0
			}
			return s.Begin(context.Background(), id, req)
		},
	}},
	"a repair forgets the route": {"remember/a missing record is written anew with them", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			if st.Repair != nil {
				re := *st.Repair
				re.ResultTTL, re.KeyTTL = 0, 0
				st.Repair = &re
			}
			return s.Settle(context.Background(), id, st)
		},
	}},
	"one value of a header is kept": {"response/as it was", storeMutant{
		settle: func(s driver.Store, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
			if st.Response != nil {
				r := *st.Response
				r.Header = map[string][]string{}
				for k, v := range st.Response.Header {
					r.Header[k] = v[:min(1, len(v))]
				}
				st.Response = &r
			}
			return s.Settle(context.Background(), id, st)
		},
	}},
	"an Abort does nothing": {"abort/a first attempt leaves its fence", storeMutant{
		abort: func(driver.Store, driver.KeyID, driver.BeginRequest) error { return nil },
	}},
	"an Abort of nothing leaves no fence": {"abort/a Begin that has not arrived is refused", storeMutant{
		abort: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) error {
			if rec, _ := s.Get(context.Background(), id); rec.State != driver.StatePending {
				return nil
			}
			return s.Abort(context.Background(), id, req)
		},
	}},
	"an Abort counts the attempt": {"abort/a first attempt leaves its fence", storeMutant{
		abort: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) error {
			if rec, _ := s.Get(context.Background(), id); rec.State == driver.StatePending && rec.Attempt.Nonce == req.Nonce {
				_, err := s.Settle(context.Background(), id, driver.Settlement{Attempt: rec.Attempt, State: driver.StateReleased, KeyTTL: time.Hour})
				return err
			}
			return s.Abort(context.Background(), id, req)
		},
	}},
	"an Abort ends any attempt": {"resend/Abort after a later attempt", storeMutant{
		abort: func(s driver.Store, id driver.KeyID, req driver.BeginRequest) error {
			if rec, _ := s.Get(context.Background(), id); rec.State == driver.StatePending {
				req.Fence, req.Nonce = rec.Attempt.Fence, rec.Attempt.Nonce
			}
			return s.Abort(context.Background(), id, req)
		},
	}},
	"pending records expire": {"expiry/pending and unknown never go", storeMutant{
		get: func(rec driver.Record, now time.Time) driver.Record {
			if rec.State == driver.StatePending && now.Sub(rec.Started) > 30*24*time.Hour {
				return driver.Record{}
			}
			return rec
		},
	}},
	"the fingerprint is dropped": {"settle/completed keeps the response", storeMutant{
		get: func(rec driver.Record, _ time.Time) driver.Record {
			if rec.State == driver.StateCompleted {
				rec.Fingerprint = driver.Fingerprint{}
			}
			return rec
		},
	}},
	"newest first": {"open/oldest first, by the start of the attempt", storeMutant{
		open: func(rows []driver.OpenRecord, _ driver.OpenQuery) []driver.OpenRecord {
			slices.Reverse(rows)
			return rows
		},
	}},
	"settled is still listed": {"open/settled ones are not", storeMutant{
		open: func(rows []driver.OpenRecord, _ driver.OpenQuery) []driver.OpenRecord {
			return append(rows, openedBefore(rows)...)
		},
	}},
	"the cursor is not looked at within a millisecond": {"open/many, with a limit and a state", storeMutant{
		open: func(rows []driver.OpenRecord, q driver.OpenQuery) []driver.OpenRecord {
			return slices.DeleteFunc(rows, func(r driver.OpenRecord) bool {
				return q.After != nil && !r.Record.Started.After(q.After.Started)
			})
		},
	}},
	"a retirement is forgotten": {"retire/a domain is retired once and for all", storeMutant{
		retired: func(bool) bool { return false },
	}},
	"the limit is taken for a hint": {"open/many, with a limit and a state", storeMutant{
		open: func(rows []driver.OpenRecord, q driver.OpenQuery) []driver.OpenRecord {
			if q.Limit == 1 && len(rows) > 0 {
				return append(rows, rows[0])
			}
			return rows
		},
	}},
}

// lastOpened remembers rows for the mutant with the endless listing.
var lastOpened atomic.Pointer[[]driver.OpenRecord]

func openedBefore(rows []driver.OpenRecord) []driver.OpenRecord {
	if len(rows) > 0 {
		rows = slices.Clone(rows)
		lastOpened.Store(&rows)
		return nil
	}
	if p := lastOpened.Load(); p != nil {
		return *p
	}
	return nil
}

// The subtest for a fault has to notice it. The suite runs in a child process, because it has
// to fail.
func TestStoreSuiteCatches(t *testing.T) {
	t.Parallel()
	for name, m := range storeMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group, test, _ := strings.Cut(m.caughtBy, "/")
			pattern := "^TestStoreMutant$/^" + group + "$/^" + strings.ReplaceAll(test, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), storeMutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestStoreMutant/"+group+"/") {
				t.Errorf("RunStore(%s)/%s = %v, want a failed subtest; it printed\n%s", name, m.caughtBy, err, out)
			}
		})
	}
}

// TestStoreMutant runs the suite on the mutant in the environment, or else on a FaultyStore without faults,
// which has to be a store like the one in it.
func TestStoreMutant(t *testing.T) {
	m := storeMutants[os.Getenv(storeMutantVariable)].mutant
	var moved atomic.Int64
	now := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(moved.Load())) }
	idemtest.RunStore(t, idemtest.StoreHarness{
		New: func(testing.TB) driver.Store {
			s := m
			s.Store, s.now = idemtest.NewFaultyStore(memorystore.New(memorystore.WithClock(now))), now
			return &s
		},
		Advance: func(d time.Duration) { moved.Add(int64(d)) },
	})
}

// storeMutant is a memory store with faults.
type storeMutant struct {
	driver.Store
	now    func() time.Time
	begin  func(driver.Store, driver.KeyID, driver.BeginRequest) (driver.BeginResult, error)
	settle func(driver.Store, driver.KeyID, driver.Settlement) (driver.SettleResult, error)
	abort  func(driver.Store, driver.KeyID, driver.BeginRequest) error
	get    func(driver.Record, time.Time) driver.Record
	open   func([]driver.OpenRecord, driver.OpenQuery) []driver.OpenRecord

	retired func(bool) bool
}

func (m *storeMutant) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := m.Store.Get(ctx, id)
	if m.get != nil {
		rec = m.get(rec, m.now())
	}
	return rec, err
}

func (m *storeMutant) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	if m.begin != nil {
		return m.begin(m.Store, id, req)
	}
	return m.Store.Begin(ctx, id, req)
}

func (m *storeMutant) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if m.settle != nil {
		return m.settle(m.Store, id, st)
	}
	return m.Store.Settle(ctx, id, st)
}

func (m *storeMutant) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	if m.abort != nil {
		return m.abort(m.Store, id, req)
	}
	return m.Store.Abort(ctx, id, req)
}

func (m *storeMutant) DomainRetired(ctx context.Context, domain string) (bool, error) {
	retired, err := m.Store.DomainRetired(ctx, domain)
	if m.retired != nil {
		retired = m.retired(retired)
	}
	return retired, err
}

func (m *storeMutant) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := m.Store.ListOpen(ctx, q)
	if m.open != nil {
		page.Records = m.open(page.Records, q)
	}
	return page, err
}
