package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

const (
	// mostSelected bounds the records of a selection, because an instance keeps them in memory.
	mostSelected = 20_000
	// selectRead is how many records are read at once for a selection.
	selectRead = 50
	// selectTimeout bounds the reading of a selection. What was read until then is the selection.
	selectTimeout = 20 * time.Second
	// selectionLife is how long a selection waits for its confirmation.
	selectionLife = 30 * time.Minute
	// An instance keeps so many selections, of one operator and of all.
	mostOfOperator, mostOfAll = 4, 16
)

// selection is what an operator wants to settle at once: the attempts as that operator has seen them. It
// does not change.
type selection struct {
	id     string
	by     string // the operator, who alone can use it
	made   time.Time
	back   string // link to the list that it comes from
	doubts []operate.Doubt
	oldest time.Time // start of an attempt
	newest time.Time
	gone   int  // records that were ticked and have changed meanwhile
	later  int  // records that went into doubt after the list was read
	more   bool // the filter selects more
	parted bool // a part of the store did not answer
}

// selections are those that wait for their confirmation, oldest first.
type selections struct {
	mu   sync.Mutex
	list []*selection
}

// add keeps a selection, and forgets those that are too old or too many.
func (s *selections) add(sel *selection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, sel)
	mine := 0
	for i, old := range slices.Backward(s.list) {
		if old.by == sel.by {
			mine++
		}
		if time.Since(old.made) > selectionLife || old.by == sel.by && mine > mostOfOperator || len(s.list)-i > mostOfAll {
			s.list[i] = nil
		}
	}
	s.list = slices.DeleteFunc(s.list, func(old *selection) bool { return old == nil })
}

// get returns nil if the operator has no such selection.
func (s *selections) get(id string, op Operator) *selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.list, func(sel *selection) bool {
		return sel.id == id && sel.by == op.Name && time.Since(sel.made) <= selectionLife
	})
	if i < 0 {
		return nil
	}
	return s.list[i]
}

// pickOf stands for an attempt in the form of the list: key ID, digest of the kept answer, attempt.
func pickOf(f *operate.Facts) string {
	return f.ID.String() + " " + cmp.Or(operate.AnswerDigest(&f.Record), "-") + " " + operate.FormatAttempt(f.Record.Attempt)
}

// parsePick reads the text of pickOf.
func parsePick(s string) (doubt operate.Doubt, err error) {
	parts := strings.SplitN(s, " ", 3)
	if len(parts) != 3 {
		return doubt, errors.New("no attempt")
	}
	if doubt.ID, err = driver.ParseKeyID(parts[0]); err != nil {
		return doubt, err
	}
	doubt.Digest = strings.TrimPrefix(parts[1], "-")
	doubt.Attempt, err = operate.ParseAttempt(parts[2])
	return doubt, err
}

// choose makes a selection of a list.
func (c *Console) choose(w http.ResponseWriter, r *http.Request) {
	op := operatorOf(r)
	if !op.MaySettle {
		c.fail(w, r, http.StatusForbidden, "You may read only. Nothing was selected.")
		return
	}
	v, _ := url.ParseQuery(strings.TrimPrefix(r.PostForm.Get("filter"), "?")) // parseQuery ignores what it does not know
	q := parseQuery(v)
	sel := &selection{id: rand.Text(), by: op.Name, made: time.Now(), back: q.self()}
	var err error
	switch r.PostForm.Get("which") {
	case "filter":
		seen, wrong := strconv.ParseInt(r.PostForm.Get("seen"), 10, 64)
		if wrong != nil {
			c.fail(w, r, http.StatusUnprocessableEntity, "The form does not say when its list was read. Nothing was selected. Open the list again.")
			return
		}
		err = c.selectAll(r.Context(), sel, q, time.UnixMicro(seen))
	case "page":
		err = c.selectPicks(r.Context(), sel, r.PostForm["shown"])
	default:
		err = c.selectPicks(r.Context(), sel, r.PostForm["pick"])
	}
	switch {
	case errors.Is(err, errNoPick):
		c.fail(w, r, http.StatusUnprocessableEntity, "The form names an attempt in a way that the console does not. Nothing was selected. Open the list again.")
	case err != nil:
		c.unavailable(w, r, err)
	case len(sel.doubts) == 0 && sel.gone+sel.later > 0:
		c.fail(w, r, http.StatusConflict, "What you selected is no longer in doubt. Open the list again.")
	case len(sel.doubts) == 0:
		c.fail(w, r, http.StatusUnprocessableEntity, "Nothing is selected. Tick the records in the list first, or settle all that it shows.")
	default:
		c.selections.add(sel)
		seeOther(w, root(r)+"select/"+sel.id)
	}
}

// errNoPick says that a form was not made by this console.
var errNoPick = errors.New("the form names no attempt")

// selectPicks selects the attempts of a form, if they are still open.
func (c *Console) selectPicks(ctx context.Context, sel *selection, picks []string) error {
	if len(picks) > rowsPerPage {
		return errNoPick
	}
	for _, pick := range picks {
		doubt, err := parsePick(pick)
		if err != nil {
			return errNoPick
		}
		rec, err := c.store.Get(ctx, doubt.ID)
		switch unreadable := errors.Is(err, driver.ErrNewerRecord) || errors.Is(err, driver.ErrCorruptRecord); {
		case err != nil && rec.State == driver.StateNone && !unreadable:
			return err
		case unreadable || !rec.State.Open() || rec.Attempt != doubt.Attempt:
			sel.gone++
			continue
		}
		if doubt.Digest != operate.AnswerDigest(&rec) {
			doubt.Digest = ""
		}
		sel.add(&rec, &doubt)
	}
	return nil
}

// selectAll selects what a list of doubts shows on all of its pages, oldest first. It reads the store in pages,
// and asks for the locks of pending records. What went into doubt after the list was read, by the store's clock,
// is left out, because its operator may have looked at an earlier attempt of the key.
func (c *Console) selectAll(ctx context.Context, sel *selection, q query, seen time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, selectTimeout)
	defer cancel()
	q.View, q.after = doubts, nil
	for open := q.open(selectRead); ; {
		page, err := c.store.ListOpen(ctx, open)
		if err != nil && len(page.Records) == 0 && page.Next == nil {
			if sel.more = len(sel.doubts) > 0; sel.more {
				return nil
			}
			return err
		}
		sel.parted = sel.parted || err != nil
		rows := c.candidates(page.Records, q, &listing{})
		rows = slices.DeleteFunc(rows, func(o driver.OpenRecord) bool { return o.Err != nil })
		running, err := c.running(ctx, rows)
		if err != nil {
			return err
		}
		for i := range rows {
			o := &rows[i]
			if running[o.ID] {
				continue
			}
			if o.Record.Since().After(seen) {
				sel.later++
				continue
			}
			if sel.more = len(sel.doubts) == mostSelected; sel.more {
				return nil
			}
			sel.add(&o.Record, &operate.Doubt{ID: o.ID, Attempt: o.Record.Attempt, Digest: operate.AnswerDigest(&o.Record)})
		}
		if open.After = page.Next; open.After == nil || q.over(open.After.Started) {
			return nil
		}
	}
}

// running are the pending records whose holder has its lock.
func (c *Console) running(ctx context.Context, rows []driver.OpenRecord) (map[driver.KeyID]bool, error) {
	var pending []driver.OpenRecord
	for _, o := range rows {
		if o.Record.State == driver.StatePending {
			pending = append(pending, o)
		}
	}
	facts, err := c.look.Look(ctx, pending)
	if err != nil {
		return nil, err
	}
	running := make(map[driver.KeyID]bool)
	for _, f := range facts {
		running[f.ID] = f.Lock == operate.LockOfAttempt
	}
	return running, nil
}

// add takes an open record into the selection. The digest stays only if repeats may get the kept answer.
func (sel *selection) add(rec *driver.Record, doubt *operate.Doubt) {
	if doubt.Route = rec.Route; !operate.KeepsSuccess(rec) {
		doubt.Digest = ""
	}
	sel.doubts = append(sel.doubts, *doubt)
	if sel.oldest.IsZero() || rec.Started.Before(sel.oldest) {
		sel.oldest = rec.Started
	}
	if rec.Started.After(sel.newest) {
		sel.newest = rec.Started
	}
}

// routeRow counts the records of a route in a selection.
type routeRow struct {
	Route string
	Count int
	Kept  int // have an answer that repeats may get
}

// routes are those of a selection, the most frequent first.
func (sel *selection) routes() []routeRow {
	rows := make(map[string]*routeRow)
	for i := range sel.doubts {
		doubt := &sel.doubts[i]
		row := rows[doubt.Route]
		if row == nil {
			row = &routeRow{Route: operate.OneLine(doubt.Route)}
			rows[doubt.Route] = row
		}
		row.Count++
		if doubt.Digest != "" {
			row.Kept++
		}
	}
	list := make([]routeRow, 0, len(rows))
	for _, route := range slices.Sorted(maps.Keys(rows)) {
		list = append(list, *rows[route])
	}
	slices.SortStableFunc(list, func(a, b routeRow) int { return b.Count - a.Count })
	return list
}
