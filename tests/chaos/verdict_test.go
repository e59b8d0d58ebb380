package chaos

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/database"
)

// figures are counts by name.
type figures map[string]int

func (f figures) add(more figures) {
	for name, n := range more {
		f[name] += n
	}
}

// judge wants all of these:
//
//   - every client has learnt how its key ended, within two minutes after the faults
//   - nothing is open, and no lock is left, once the sweeper had time, without another request
//   - no client got an answer that it may not get, and all payments of a key are the same,
//     byte for byte
//   - then a last request under each key ends it: with its payment or, where the store may
//     lose records or there is no resolver, with the word that the result or the outcome is
//     not known
//   - a key has one payment in the ledger at most, and the one that clients were told of
//   - the payments explain the balances, and no money was made or lost
func (c *chaos) judge() {
	c.settled()
	c.unlocked()
	c.figures["seconds-until-settled"] += int(time.Since(c.ended).Seconds())
	c.askAll()
	for _, key := range c.wrong {
		c.broken(key, "an answer is wrong")
	}
	for _, key := range c.late {
		c.broken(key, "a client has waited too long for the end")
	}
	paid := c.payments()
	for _, s := range c.stories {
		ids := paid[s.key]
		delete(paid, s.key)
		switch {
		case len(ids) > 1:
			c.figures["doubles"] += len(ids) - 1
			c.broken(s.key, fmt.Sprintf("it was paid %d times: %v", len(ids), ids))
		case s.paid != "" && !slices.Equal(ids, []string{s.paid}):
			c.figures["lost"]++
			c.broken(s.key, fmt.Sprintf("clients were told of %s, and the ledger has %v", s.paid, ids))
		case s.paid == "" && s.end == "":
			c.broken(s.key, "no client knows how it ended")
		}
		c.figures["payments"] += len(ids)
		switch {
		case s.paid != "":
			c.figures["acknowledged"]++
		case s.end == "outcome-unknown":
			c.figures["unknown"]++
		case s.end == "result-unavailable":
			c.figures["unavailable"]++
		}
	}
	for note, ids := range paid {
		c.t.Errorf("the ledger has payments %v of %q, which no client made", ids, note)
	}
	c.figures["runs"]++
	c.figures["keys"] += len(c.stories)
	c.figures["doubles"] += 0 // so that it is told
	c.figures["lost"] += 0
	c.figures["wrong-answers"] += len(c.wrong)
	c.figures["given-up"] += len(c.late)
	if c.figures["acknowledged"] == 0 {
		c.t.Error("no payment was acknowledged, so the run shows nothing")
	}
}

// settled waits until the sweeper has settled what the dead have left.
func (c *chaos) settled() {
	args := []string{}
	if c.unsolved {
		args = []string{"--state", "pending"}
	}
	for _, domain := range c.domains { // a late message may have shown that the copy lacked a fence
		c.retire(domain)
	}
	err := kit.Poll(2*kit.WaitLimit, func() error {
		if open := c.OpenRecords(c.t, args...); len(open) > 0 {
			return fmt.Errorf("%d records are open: %v", len(open), open)
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
}

// unlocked waits until no key has a lock.
func (c *chaos) unlocked() {
	if len(c.ZK) == 0 { // a lock in Redis ends by itself, and with sql it is the open record
		return
	}
	conn := c.ZooKeeper()
	left := slices.Clone(c.stories)
	err := kit.Poll(kit.WaitLimit, func() error {
		left = slices.DeleteFunc(left, func(s *story) bool { return !c.LockExists(conn, s.key) })
		if len(left) > 0 {
			return fmt.Errorf("%d keys are locked, such as %s", len(left), left[0].key)
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
		c.broken(left[0].key, "its lock is left")
	}
}

// askAll asks for every key once more, until the answer is final.
func (c *chaos) askAll() {
	began := time.Now()
	l := &load{c: c, gaveUp: func() bool { return time.Since(began) > kit.WaitLimit }}
	var next sync.Mutex
	rest := slices.Clone(c.stories)
	var askers sync.WaitGroup
	for w := range chaosWorkers {
		r := rand.New(rand.NewPCG(c.seed, uint64(2000+w)))
		askers.Go(func() {
			for {
				next.Lock()
				if len(rest) == 0 {
					next.Unlock()
					return
				}
				s := rest[0]
				rest = rest[1:]
				next.Unlock()
				l.send(s, "the last request", false, r)
			}
		})
	}
	askers.Wait()
}

// payments returns the IDs of all payments by their note, which is their key. They have to
// explain the balances.
func (c *chaos) payments() map[string][]string {
	books, err := database.Open(c.books, database.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer books.Close()
	db := books.Write
	paid, balance, sum := map[string][]string{}, map[string]int64{}, int64(0)
	c.each(db, "SELECT id, opening, balance FROM accounts WHERE merchant = 'merchant_demo'", func(scan func(...any) error) error {
		var id string
		var opening, now int64
		err := scan(&id, &opening, &now)
		balance[id] += now - opening
		sum += now
		return err
	})
	c.each(db, "SELECT id, note, from_account, to_account, amount FROM payments WHERE merchant = 'merchant_demo'", func(scan func(...any) error) error {
		var id, note, from, to string
		var amount int64
		err := scan(&id, &note, &from, &to, &amount)
		paid[note] = append(paid[note], id)
		balance[from] += amount
		balance[to] -= amount
		return err
	})
	for account, n := range balance {
		if n != 0 {
			c.t.Errorf("%s has %d more than its payments explain", account, n)
		}
	}
	if sum != kit.OpeningBalances {
		c.t.Errorf("the balances add up to %d, want %d", sum, kit.OpeningBalances)
	}
	return paid
}

// each reads all rows.
func (c *chaos) each(db *sql.DB, query string, row func(scan func(...any) error) error) {
	rows, err := db.QueryContext(c.t.Context(), query)
	if err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			c.t.Fatalf("%s: %v", query, err)
		}
	}
	if err := rows.Err(); err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
}

// broken fails the test with the story of a key: what its clients got, what the instances
// logged, and which faults there were meanwhile.
func (c *chaos) broken(key, why string) {
	c.figures["broken"]++
	if c.figures["broken"] > 5 {
		c.t.Errorf("%s: %s", key, why)
		return
	}
	i := slices.IndexFunc(c.stories, func(s *story) bool { return s.key == key })
	all := slices.Clone(c.stories[i].entries)
	first, last := all[0].at, all[len(all)-1].at
	for _, s := range c.slots {
		all = append(all, s.lines(kit.LogOp(key))...)
	}
	for _, e := range c.diary {
		if e.at.After(first.Add(-10*time.Second)) && e.at.Before(last) {
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return a.at.Compare(b.at) })
	var text strings.Builder
	for _, e := range all {
		fmt.Fprintf(&text, "%s %s\n", e.at.UTC().Format("15:04:05.000"), e.text)
	}
	c.t.Errorf("%s with seed %d: %s: %s\n%s", c.config.name, c.seed, key, why, text.String())
}
