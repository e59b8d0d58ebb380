package idemtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
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
	NewerRecord: idem.ErrNewerRecord, OlderRecord: idem.ErrCorruptRecord, EmptyRecord: idem.ErrCorruptRecord,
	CutRecord: idem.ErrCorruptRecord, GarbageRecord: idem.ErrCorruptRecord,
}

var damagedResponses = []Damage{CutResponse, EmptyResponse, ExtendedResponse, ChangedResponse}

// storeDamageTests are about unreadable data.
var storeDamageTests = []storeTest{
	{name: "a record that cannot be read refuses every call and stays", damages: true, run: func(b *storeBench) {
		for damage, want := range unreadableRecords {
			for _, state := range []idem.State{idem.StatePending, idem.StateUnknown, idem.StateCompleted, idem.StateReleased} {
				b.id = randomKeyID()
				a, req := b.start(idem.ClientKey)
				if state != idem.StatePending {
					b.settle(settlement(a, state), true)
				}
				b.damage(damage)
				restore := settlement(a, idem.StateCompleted)
				restore.Repair = &idem.Repair{Route: req.Route, Fingerprint: req.Fingerprint, Started: time.Now()}
				for range 2 {
					rec, err := b.s.Get(b.ctx, b.id)
					b.refuses(damage, "Get", err, want)
					if rec.State != idem.StateNone {
						b.Errorf("%s: Get() = %v, want no record beside the error", damage, rec.State)
					}
					res, err := b.s.Begin(b.ctx, b.id, b.request(idem.ClientKey))
					b.refuses(damage, "Begin", err, want)
					again, err := b.s.Begin(b.ctx, b.id, req)
					b.refuses(damage, "Begin of before", err, want)
					if res.Begun || again.Begun {
						b.Errorf("%s: Begin() began", damage)
					}
					got, err := b.s.Settle(b.ctx, b.id, settlement(a, idem.StateCompleted))
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
		var ids []idem.KeyID
		bad := map[idem.KeyID]Damage{}
		damages := []Damage{NewerRecord, OlderRecord, EmptyRecord, CutRecord, GarbageRecord}
		for i := range 3 * len(damages) {
			b.id = randomKeyID()
			a, _ := b.start(idem.ClientKey)
			if i%2 == 0 {
				b.settle(settlement(a, idem.StateUnknown), true)
			}
			ids = append(ids, b.id)
		}
		before := b.open(idem.OpenQuery{})
		for i, damage := range damages {
			b.id = ids[3*i+1]
			bad[b.id] = damage
			b.damage(damage)
		}
		rows := b.open(idem.OpenQuery{})
		if len(rows) != len(before) {
			b.Fatalf("ListOpen() = %d records, want %d", len(rows), len(before))
		}
		for i, row := range rows {
			if row.Cursor() != before[i].Cursor() {
				b.Errorf("row %d is %+v, want %+v", i, row.Cursor(), before[i].Cursor())
			}
			damage, isBad := bad[row.ID]
			switch {
			case isBad && (!errors.Is(row.Err, unreadableRecords[damage]) || row.Record.State != idem.StateNone):
				b.Errorf("row %d is %v, %v, want %v", i, row.Record.State, row.Err, unreadableRecords[damage])
			case !isBad && (row.Err != nil || differ(row.Record, before[i].Record) != ""):
				b.Errorf("row %d is %v, %v, want the record as it was", i, row.Record.State, row.Err)
			}
		}
		for _, state := range []idem.State{idem.StatePending, idem.StateUnknown} {
			listed := b.open(idem.OpenQuery{State: state})
			for id := range bad {
				if !slices.ContainsFunc(listed, func(r idem.OpenRecord) bool { return r.ID == id }) {
					b.Errorf("ListOpen(%v) leaves out %v, which may be in any state", state, id)
				}
			}
		}
	}},
	{name: "a damaged response is none, and no reason to run again", damages: true, run: func(b *storeBench) {
		for _, damage := range damagedResponses {
			for _, size := range []int{0, 10, 4096} {
				for _, state := range []idem.State{idem.StateUnknown, idem.StateCompleted} {
					b.id = randomKeyID()
					what := fmt.Sprintf("%s of %d bytes, %v", damage, size, state)
					a, req := b.start(idem.ClientKey)
					s := settlement(a, state)
					s.Response = &idem.Response{Status: 201, Body: bytes.Repeat([]byte("x"), size)}
					b.settle(s, true)
					b.damage(damage)
					check := func(call string, rec idem.Record) {
						b.Helper()
						if rec.State != state || rec.Attempt != a || rec.Response != nil || !errors.Is(rec.ResponseErr, idem.ErrResponseDamaged) {
							b.Errorf("%s: %s() = %v with %s, %v, want no response and %v", what, call, rec.State,
								describeResponse(rec.Response), rec.ResponseErr, idem.ErrResponseDamaged)
						}
					}
					check("Get", b.get())
					res := b.begin(b.request(idem.ClientKey))
					check("Begin", res.Record)
					if res.Begun {
						b.Errorf("%s: Begin() began", what)
					}
					if state == idem.StateUnknown {
						i := slices.IndexFunc(b.open(idem.OpenQuery{}), func(r idem.OpenRecord) bool { return r.ID == b.id })
						if i < 0 {
							b.Errorf("%s: ListOpen() does not list it", what)
						} else {
							check("ListOpen", b.open(idem.OpenQuery{})[i].Record)
						}
						b.settle(decision(a, idem.StateCompleted), true) // it can still be decided
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
	if !errors.Is(err, want) || errors.Is(err, idem.ErrUnavailable) {
		b.Errorf("%s: %s() = %v, want %v", d, call, err, want)
	}
}
