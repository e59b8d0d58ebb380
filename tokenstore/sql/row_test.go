package sqlstore

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

func entryForRows(state driver.State) *rules.Entry {
	at := func(us int64) time.Time { return time.UnixMicro(us).UTC() }
	return &rules.Entry{
		Record: driver.Record{
			State: state, Kind: driver.IssuedToken, Route: "POST /pay", Fingerprint: driver.Fingerprint{Version: 1, Sum: [32]byte{31: 9}},
			Attempt: driver.Attempt{Number: math.MaxUint32, Fence: driver.Fence{Domain: "d", Token: math.MaxUint64}, Nonce: driver.NewNonce()},
			Created: at(1), Started: at(2), Settled: at(3), ResultExpires: at(4), KeyExpires: at(5), TokenExpires: at(6),
			Decision: driver.Decision{By: "ann", Reason: "asked the bank"},
		},
		Settlement: [16]byte{15: 7}, Repaired: true, Response: []byte("paid"),
	}
}

// A record comes back as it was, and lists of open and of expired records find it by its columns.
func TestRowsKeepTheirEntries(t *testing.T) {
	t.Parallel()
	for state := driver.StateIssued; state <= driver.StateExpired; state++ {
		e := entryForRows(state)
		if state == driver.StatePending {
			e.Before = entryForRows(driver.StateUnknown)
			e.Before.Response = nil // it is given up with the Begin
		}
		r, err := pack(e)
		must(t, err)
		got, err := r.unpack()
		must(t, err)
		if again, err := pack(got); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%v: a row that was read and packed = %+v, %v, want %+v", state, again, err, r)
		}
		if open := r.OpenSince != nil; open != state.Open() || open && *r.OpenSince != 2 {
			t.Errorf("%v: open since %v, want the start of an open record", state, r.OpenSince)
		}
		if end := e.Deadline(); end.IsZero() != (r.Expires == nil) || r.Expires != nil && *r.Expires != end.UnixMicro() {
			t.Errorf("%v: expires %v, want %v", state, r.Expires, end)
		}
	}
	e := entryForRows(driver.StateCompleted)
	e.Repaired, e.Record.Settled = false, time.Time{}
	if r, err := pack(e); err != nil || r.Repaired != 0 || r.Settled != 0 {
		t.Errorf("pack() = repaired %d, settled %d, %v, want 0 and 0", r.Repaired, r.Settled, err)
	}
}

// No column is taken for what it cannot be.
func TestRowsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(r *row)
		want   error
	}{
		"of a later form":        {func(r *row) { r.Form = recordForm + 1 }, driver.ErrNewerRecord},
		"of an earlier form":     {func(r *row) { r.Form = recordForm - 1 }, driver.ErrCorruptRecord},
		"without a state":        {func(r *row) { r.State = int64(driver.StateIssued) - 1 }, driver.ErrCorruptRecord},
		"in an unknown state":    {func(r *row) { r.State = int64(driver.StateExpired) + 1 }, driver.ErrCorruptRecord},
		"below the kinds":        {func(r *row) { r.Kind = int64(driver.ClientKey) - 1 }, driver.ErrCorruptRecord},
		"above the kinds":        {func(r *row) { r.Kind = int64(driver.IssuedToken) + 1 }, driver.ErrCorruptRecord},
		"before all attempts":    {func(r *row) { r.Attempt = -1 }, driver.ErrCorruptRecord},
		"after all attempts":     {func(r *row) { r.Attempt = math.MaxUint32 + 1 }, driver.ErrCorruptRecord},
		"with half a nonce":      {func(r *row) { r.Nonce = r.Nonce[:8] }, driver.ErrCorruptRecord},
		"with half a settlement": {func(r *row) { r.Settlement = r.Settlement[:8] }, driver.ErrCorruptRecord},
		"with half a sum":        {func(r *row) { r.Fingerprint = r.Fingerprint[:17] }, driver.ErrCorruptRecord},
		"over nonsense":          {func(r *row) { r.Previous = []byte("{") }, driver.ErrCorruptRecord},
		"over a damaged record":  {func(r *row) { r.Previous = []byte("{}") }, driver.ErrCorruptRecord},
	} {
		r, err := pack(entryForRows(driver.StatePending))
		must(t, err)
		c.damage(r)
		if got, err := r.unpack(); got != nil || !errors.Is(err, c.want) {
			t.Errorf("a row %s: unpack() = %v, %v, want %v", name, got, err, c.want)
		}
	}
}
