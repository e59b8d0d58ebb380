package idemtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Damage is a kind of damage to the stored data of a key.
type Damage string

// The damages.
const (
	NewerRecord      Damage = "a record that a newer build wrote"
	OlderRecord      Damage = "a record of a form that this build does not read any more"
	EmptyRecord      Damage = "an empty record"
	CutRecord        Damage = "a record that was cut off"
	GarbageRecord    Damage = "a record of garbage"
	CutResponse      Damage = "a response that was cut off"
	EmptyResponse    Damage = "a response that is gone"
	ExtendedResponse Damage = "a response that was extended"
	ChangedResponse  Damage = "a response with another byte"
)

// unreadableRecords are the damages to a whole record, with the error of the store.
var unreadableRecords = map[Damage]error{
	NewerRecord: driver.ErrNewerRecord, OlderRecord: driver.ErrCorruptRecord, EmptyRecord: driver.ErrCorruptRecord,
	CutRecord: driver.ErrCorruptRecord, GarbageRecord: driver.ErrCorruptRecord,
}

var damagedResponses = []Damage{CutResponse, EmptyResponse, ExtendedResponse, ChangedResponse}

// storeDamageTests are about unreadable data.
var storeDamageTests = []storeTest{
	{name: "a record that cannot be read refuses every call and stays", damages: true, run: func(b *storeBench) {
		for damage, want := range unreadableRecords {
			for _, state := range []driver.State{driver.StatePending, driver.StateUnknown, driver.StateCompleted, driver.StateReleased} {
				b.id = randomKeyID()
				a, req := b.start(driver.ClientKey)
				if state != driver.StatePending {
					b.settle(settlement(a, state), true)
				}
				b.damage(damage)
				restore := settlement(a, driver.StateCompleted)
				restore.Repair = &driver.Repair{Route: req.Route, Fingerprint: req.Fingerprint, Started: time.Now()}
				for range 2 {
					rec, err := b.s.Get(b.ctx, b.id)
					b.refuses(damage, "Get", err, want)
					if rec.State != driver.StateNone {
						b.Errorf("%s: Get() = %v, want no record beside the error", damage, rec.State)
					}
					res, err := b.s.Begin(b.ctx, b.id, b.request(driver.ClientKey))
					b.refuses(damage, "Begin", err, want)
					again, err := b.s.Begin(b.ctx, b.id, req)
					b.refuses(damage, "Begin of before", err, want)
					if res.Begun || again.Begun {
						b.Errorf("%s: Begin() began", damage)
					}
					got, err := b.s.Settle(b.ctx, b.id, settlement(a, driver.StateCompleted))
					b.refuses(damage, "Settle", err, want)
					restored, err := b.s.Settle(b.ctx, b.id, restore)
					b.refuses(damage, "Settle, which restores", err, want)
					if got.Settled || restored.Settled {
						b.Errorf("%s: Settle() settled", damage)
					}
					b.refuses(damage, "Abort", b.s.Abort(b.ctx, b.id, req), want)
					_, err = b.s.Issue(b.ctx, b.id, time.Hour)
					b.refuses(damage, "Issue", err, want)
				}
			}
		}
	}},
	{name: "a record that cannot be read is listed at its place, and hurts no other", damages: true, run: func(b *storeBench) {
		var ids []driver.KeyID
		bad := map[driver.KeyID]Damage{}
		damages := []Damage{NewerRecord, OlderRecord, EmptyRecord, CutRecord, GarbageRecord}
		for i := range 3 * len(damages) {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			if i%2 == 0 {
				b.settle(settlement(a, driver.StateUnknown), true)
			}
			ids = append(ids, b.id)
		}
		before := b.open(driver.OpenQuery{})
		for i, damage := range damages {
			b.id = ids[3*i+1]
			bad[b.id] = damage
			b.damage(damage)
		}
		rows := b.open(driver.OpenQuery{})
		if len(rows) != len(before) {
			b.Fatalf("ListOpen() = %d records, want %d", len(rows), len(before))
		}
		for i, row := range rows {
			if row.Cursor() != before[i].Cursor() {
				b.Errorf("row %d is %+v, want %+v", i, row.Cursor(), before[i].Cursor())
			}
			damage, isBad := bad[row.ID]
			switch {
			case isBad && (!errors.Is(row.Err, unreadableRecords[damage]) || row.Record.State != driver.StateNone):
				b.Errorf("row %d is %v, %v, want %v", i, row.Record.State, row.Err, unreadableRecords[damage])
			case !isBad && (row.Err != nil || differ(row.Record, before[i].Record) != ""):
				b.Errorf("row %d is %v, %v, want the record as it was", i, row.Record.State, row.Err)
			}
		}
		for _, state := range []driver.State{driver.StatePending, driver.StateUnknown} {
			listed := b.open(driver.OpenQuery{State: state})
			for id := range bad {
				if !slices.ContainsFunc(listed, func(r driver.OpenRecord) bool { return r.ID == id }) {
					b.Errorf("ListOpen(%v) leaves out %v, which may be in any state", state, id)
				}
			}
		}
	}},
	{name: "a damaged response is none, and no reason to run again", damages: true, run: func(b *storeBench) {
		for _, damage := range damagedResponses {
			for _, size := range []int{0, 10, 4096} {
				for _, state := range []driver.State{driver.StateUnknown, driver.StateCompleted} {
					b.id = randomKeyID()
					what := fmt.Sprintf("%s of %d bytes, %v", damage, size, state)
					a, req := b.start(driver.ClientKey)
					s := settlement(a, state)
					s.Response = &driver.Response{Status: 201, Body: bytes.Repeat([]byte("x"), size)}
					b.settle(s, true)
					b.damage(damage)
					check := func(call string, rec driver.Record) {
						b.Helper()
						if rec.State != state || rec.Attempt != a || rec.Response != nil || !errors.Is(rec.ResponseErr, driver.ErrResponseDamaged) {
							b.Errorf("%s: %s() = %v with %s, %v, want no response and %v", what, call, rec.State,
								describeResponse(rec.Response), rec.ResponseErr, driver.ErrResponseDamaged)
						}
					}
					check("Get", b.get())
					res := b.begin(b.request(driver.ClientKey))
					check("Begin", res.Record)
					if res.Begun {
						b.Errorf("%s: Begin() began", what)
					}
					if state == driver.StateUnknown {
						i := slices.IndexFunc(b.open(driver.OpenQuery{}), func(r driver.OpenRecord) bool { return r.ID == b.id })
						if i < 0 {
							b.Errorf("%s: ListOpen() does not list it", what)
						} else {
							check("ListOpen", b.open(driver.OpenQuery{})[i].Record)
						}
						b.settle(decision(a, driver.StateCompleted), true) // it can still be decided
						continue
					}
					b.abort(req)
					check("Get, after Abort,", b.get())
				}
			}
		}
	}},
}

// damage damages the stored data of the key.
func (b *storeBench) damage(d Damage) {
	b.Helper()
	b.h.Damage(b.T, b.s, b.id, d)
}

// refuses requires this error and no other effect.
func (b *storeBench) refuses(d Damage, call string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) || errors.Is(err, driver.ErrUnavailable) {
		b.Errorf("%s: %s() = %v, want %v", d, call, err, want)
	}
}
