package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// Level grades a line in the strip of health.
type Level string

// The levels of health.
const (
	OK   Level = "ok"
	Warn Level = "warn" // look at it by day
	Fail Level = "fail" // requests are refused, or nobody settles what is in doubt
	None Level = "none" // this instance cannot tell
)

// healthLine is a line in the strip.
type healthLine struct {
	Name  string // such as "Locks"
	Level Level
	Text  string // one sentence for an operator; never an error of a server
}

// Check is a line of the service's own. Look is called at most every few seconds, with a context
// of three seconds. It must be safe for concurrent use. A panic is a line that fails.
type Check struct {
	Name string
	Look func(ctx context.Context) (Level, string)
}

// replicated is a store that waits for replicas.
type replicated interface {
	Replicas(ctx context.Context) (attached, wanted int, err error)
}

const (
	freshFor  = 5 * time.Second // how long the strip is good
	mostCount = 20_000          // open records to count
	countPage = 500
)

// report is the whole health, at one moment.
type report struct {
	At     time.Time
	Lines  []healthLine
	Ages   []ageRow
	More   bool // there are more open records than were counted
	Counts counts
	Routes []guarantee.Guarantee // of this instance

	WithoutKey []telemetry.WithoutKey // requests of this instance
}

// counts of open records.
type counts struct{ Pending, Unknown, Unreadable int }

// ageRow counts open records of an age.
type ageRow struct {
	Name, Older string // the age in words, and its filter
	counts
}

// strip remembers the report for a moment, so that many operators cost no more than one.
type strip struct {
	console *Console

	mu   sync.Mutex
	last report
}

func (s *strip) get(ctx context.Context) report {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last.At) < freshFor {
		return s.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	s.last = s.console.examine(ctx)
	return s.last
}

// forget makes the next page ask again.
func (s *strip) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = report{}
}

// sees makes the next page ask again if the report knows of no open record, though a page has one.
func (s *strip) sees(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open && s.last.Counts == (counts{}) {
		s.last = report{}
	}
}

// examine asks everything at once.
func (c *Console) examine(ctx context.Context) report {
	rep := report{At: time.Now(), Routes: c.engine.Guarantees(), WithoutKey: c.engine.WithoutKey()}
	checks := []Check{{"Locks", c.checkLocks}, {"Store", c.checkStore}, {"Replicas", c.checkReplicas}, {"Sweeper", c.sweeps.check}}
	checks = append(checks, c.cfg.Checks...)
	lines := make([]healthLine, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() {
			lines[i] = healthLine{Name: check.Name}
			lines[i].Level, lines[i].Text = c.run(ctx, check)
		})
	}
	open, domains := c.countOpen(ctx, &rep)
	wg.Wait()
	rep.Lines = append([]healthLine{open}, lines[:2]...)
	rep.Lines = append(append(rep.Lines, domains), lines[2:]...)
	return rep
}

// run makes the line of a check.
func (c *Console) run(ctx context.Context, check Check) (level Level, text string) {
	defer func() {
		if p := recover(); p != nil {
			c.cfg.Logger.ErrorContext(ctx, "console: a check panicked", "check", check.Name, "panic", p, "stack", string(debug.Stack()))
			level, text = Fail, "The check panicked. The log of the service has the reason."
		}
	}()
	return check.Look(ctx)
}

func (c *Console) checkLocks(ctx context.Context) (Level, string) {
	if domain, err := c.engine.DomainOf(ctx, driver.KeyID{}); err == nil && domain == driver.JoinedDomain {
		return OK, "Joined transactions take the place of locks."
	}
	if err := c.engine.PingLock(ctx); err != nil {
		c.cfg.Logger.WarnContext(ctx, "console: lock service", "err", err)
		return Fail, "The lock service does not answer. New requests are refused."
	}
	return OK, "The lock service gives out locks."
}

func (c *Console) checkStore(ctx context.Context) (Level, string) {
	err := c.store.Ping(ctx)
	switch {
	case err == nil:
		return OK, "The token store accepts new records."
	case errors.Is(err, driver.ErrStoreLost):
		return Fail, "The token store has lost its records. New requests are refused. See idemctl store accept."
	}
	c.cfg.Logger.WarnContext(ctx, "console: token store", "err", err)
	return Fail, "The token store does not accept new records. New requests are refused."
}

func (c *Console) checkReplicas(ctx context.Context) (Level, string) {
	s, ok := c.store.(replicated)
	if !ok {
		return None, "This store does not tell of replicas."
	}
	attached, wanted, err := s.Replicas(ctx)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return None, "This store does not tell of replicas."
	case err != nil:
		return Warn, "The replicas could not be asked for."
	case attached < wanted:
		return Fail, fmt.Sprintf("%d of %d replicas are attached. New requests are refused.", attached, wanted)
	case wanted > 0:
		return OK, fmt.Sprintf("%d replicas are attached, %d are needed.", attached, wanted)
	case attached == 0:
		return Warn, "No replica is attached, and none is waited for. A lost server loses its records."
	}
	return OK, fmt.Sprintf("%d replicas are attached. No request waits for them.", attached)
}

// countOpen counts open records by age, and those under lock domains that are not in use.
func (c *Console) countOpen(ctx context.Context, rep *report) (open, domains healthLine) {
	open, domains = healthLine{Name: "Open"}, healthLine{Name: "Lock domains"}
	bounds := []time.Duration{24 * time.Hour, time.Hour, 10 * time.Minute, time.Minute, 0}
	names := []string{"over a day", "1 hour to 1 day", "10 minutes to 1 hour", "1 to 10 minutes", "under a minute"}
	for i, name := range names {
		rep.Ages = append(rep.Ages, ageRow{Name: name, Older: bounds[i].String()})
	}
	samples := make(map[string]driver.KeyID) // a key of each lock domain
	under := make(map[string]int)
	now, err := c.look.Clock(ctx)
	counting, cancel := context.WithTimeout(ctx, patience*2/3) // and the domains have the rest
	defer cancel()
	seen, oldest := 0, time.Time{}
	var failed error // of a part of the store
	for q := (driver.OpenQuery{Limit: countPage}); err == nil; {
		page, listErr := c.store.ListOpen(counting, q)
		if rep.More = seen > 0 && len(page.Records) == 0 && counting.Err() != nil; rep.More {
			break // the store is slow, and there are many
		}
		failed = cmp.Or(failed, listErr)
		for i := range page.Records {
			o := &page.Records[i]
			if oldest.IsZero() {
				oldest = o.Record.Started
			}
			bucket := 0
			for bucket < len(bounds)-1 && now.Sub(o.Record.Started) < bounds[bucket] {
				bucket++
			}
			rep.Counts.add(o)
			rep.Ages[bucket].add(o)
			if o.Err == nil {
				domain := o.Record.Attempt.Fence.Domain
				samples[domain] = o.ID
				under[domain]++
			}
		}
		seen += len(page.Records)
		if q.After = page.Next; q.After == nil {
			break
		}
		if seen >= mostCount {
			rep.More = true
			break
		}
	}
	if err != nil || failed != nil && seen == 0 {
		open.Level, open.Text = Fail, "The open records could not be listed."
		domains.Level, domains.Text = None, "Not known, because the open records could not be listed."
		return open, domains
	}
	open.Level, open.Text = c.gradeOpen(rep, seen, now.Sub(oldest))
	domains.Level, domains.Text = c.gradeDomains(ctx, samples, under)
	if failed != nil {
		open.Level, open.Text = Fail, "A part of the token store does not answer. Of the others: "+open.Text
	}
	return open, domains
}

func (n *counts) add(o *driver.OpenRecord) {
	switch {
	case o.Err != nil:
		n.Unreadable++
	case o.Record.State == driver.StateUnknown:
		n.Unknown++
	default:
		n.Pending++
	}
}

func (c *Console) gradeOpen(rep *report, seen int, oldest time.Duration) (Level, string) {
	if seen == 0 {
		return OK, "No attempt is open."
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{rep.Counts.Unknown, "in doubt"}, {rep.Counts.Unreadable, "unreadable"}, {rep.Counts.Pending, "running or interrupted"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	text := strings.Join(parts, ", ") + ", the oldest for " + operate.Brief(oldest) + "."
	if rep.More {
		text = "more than " + text
	}
	if rep.Counts.Unknown+rep.Counts.Unreadable > 0 || oldest > 10*time.Minute {
		return Warn, text
	}
	return OK, text
}

func (c *Console) gradeDomains(ctx context.Context, samples map[string]driver.KeyID, under map[string]int) (Level, string) {
	foreign, records := 0, 0
	for domain, id := range samples {
		now, err := c.engine.DomainOf(ctx, id)
		if err != nil {
			return None, "This lock service does not tell its domain now."
		}
		if now == domain {
			continue
		}
		if retired, err := c.store.DomainRetired(ctx, domain); err != nil || retired {
			continue
		}
		foreign++
		records += under[domain]
	}
	if foreign > 0 {
		return Warn, plural(records, "open record is", "open records are") + " under " + plural(foreign, "lock domain that is", "lock domains that are") + " neither in use here nor retired."
	}
	return OK, "All open records are under lock domains in use, or under retired ones."
}

// Ago says how long before the report something was.
func (rep report) Ago(t time.Time) string { return operate.Brief(max(rep.At.Sub(t), 0)) }

// healthPage shows the whole report.
type healthPage struct {
	page
	Report report
	At     string
}

func (c *Console) health(w http.ResponseWriter, r *http.Request) {
	rep := c.strip.get(r.Context())
	c.render(w, r, http.StatusOK, "health", healthPage{page: c.page(r, "Health"), Report: rep, At: operate.Stamp(rep.At)})
}

// sweeps remembers the last pass of the sweeper.
type sweeps struct {
	mu   sync.Mutex
	at   time.Time
	pass sweeper.Pass
	told bool // this instance has a sweeper
}

// Swept tells the console of a pass. Call it from the function of [sweeper.WithObserver].
func (c *Console) Swept(_ context.Context, p sweeper.Pass) {
	s := &c.sweeps
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.pass, s.told = time.Now(), p, true
}

// quiet is how long the leader may be without a pass. A pass over many records is followed by a
// pause of some seconds.
const quiet = time.Minute

func (s *sweeps) check(context.Context) (Level, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ago := time.Since(s.at)
	switch p := &s.pass; {
	case !s.told:
		return None, "This instance has not swept. Another instance may."
	case p.Leader && ago > quiet:
		return Warn, "This instance swept, last " + operate.Brief(ago) + " ago. Another instance may have taken over."
	case !p.Leader:
		return Warn, "This instance could not be elected " + operate.Brief(ago) + " ago."
	case p.Failed > 0 || p.Unqueued > 0:
		return Warn, fmt.Sprintf("This instance sweeps. In the pass %s ago %s failed.", operate.Brief(ago), plural(p.Failed+p.Unqueued, "record", "records"))
	default:
		return OK, fmt.Sprintf("This instance sweeps. The pass %s ago looked at %s and settled %d.", operate.Brief(ago), plural(p.Looked, "record", "records"), p.Settled())
	}
}

// plural is a number with the words that fit it.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
