package operate

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Filter selects open records.
type Filter struct {
	State driver.State // StatePending or StateUnknown, or StateNone for both
	Route string       // the whole name, "" for every route
	// From and Until bound the time at which the attempt began. From is included and Until is not.
	// A zero time bounds nothing.
	From, Until time.Time
	After       *driver.OpenCursor // goes on after it
	Bare        bool               // without the stored responses
}

// Each calls f with every record that the filter selects, oldest first, and with the unreadable
// ones of that time, until f returns false. It reads pages of at most size records, each in a call
// of its own. If a part of the store does not answer, f gets the records of the others, and the
// error comes at the end.
func (q *Filter) Each(ctx context.Context, store driver.Store, size int, f func(*driver.OpenRecord) bool) (failed error) {
	open := driver.OpenQuery{State: q.State, Limit: size, After: q.after(), WithoutResponses: q.Bare}
	for {
		page, err := store.ListOpen(ctx, open)
		if failed = cmp.Or(failed, err); ctx.Err() != nil {
			return ctx.Err()
		}
		for i := range page.Records {
			row := &page.Records[i]
			switch {
			case !q.Until.IsZero() && !row.Record.Started.Before(q.Until):
				return failed
			case row.Err == nil && q.Route != "" && row.Record.Route != q.Route:
			case !f(row):
				return failed
			}
		}
		if open.After = page.Next; page.Next == nil || !q.Until.IsZero() && !page.Next.Started.Before(q.Until) {
			return failed
		}
	}
}

// FormatCursor writes a place in the list of open records, for a command line or a URL.
func FormatCursor(c driver.OpenCursor) string {
	return strconv.FormatInt(c.Started.UnixNano(), 10) + "-" + c.ID.String()
}

// ParseCursor reads the text of [FormatCursor].
func ParseCursor(s string) (c driver.OpenCursor, err error) {
	at, id, _ := strings.Cut(s, "-")
	nanos, err := strconv.ParseInt(at, 10, 64)
	if err == nil {
		c.ID, err = driver.ParseKeyID(id)
	}
	c.Started = time.Unix(0, nanos).UTC()
	if err != nil || FormatCursor(c) != s {
		return driver.OpenCursor{}, fmt.Errorf("%q is no place in the list of open records", s)
	}
	return c, nil
}

// after is the place in front of the first record.
func (q *Filter) after() *driver.OpenCursor {
	if q.From.IsZero() {
		return q.After
	}
	// Stores keep whole microseconds at most. So no record begins between this place and From.
	from := &driver.OpenCursor{Started: q.From.Add(-time.Microsecond)}
	for i := range from.ID {
		from.ID[i] = 0xff
	}
	if q.After != nil && q.After.Compare(*from) > 0 {
		return q.After
	}
	return from
}
