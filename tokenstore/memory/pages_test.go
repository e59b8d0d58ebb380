package memorystore

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// size is how much memory pages take.
func (p *pages) size() int {
	n := 0
	for _, pg := range p.all {
		n += cap(pg.buf)
	}
	return n
}

// Records stay what they are until they are removed, whatever is added and
// removed beside them, and nothing is left of them then.
func TestPagesKeepRecords(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var p pages
	kept := make(map[place][]byte)
	add := func() {
		record := make([]byte, rng.IntN(400))
		if rng.IntN(500) == 0 {
			record = make([]byte, rng.IntN(3*maxPage))
		}
		for i := range record {
			record[i] = byte(rng.IntN(256))
		}
		at, buf := p.reserve(time.Duration(rng.Int64N(int64(90*24*time.Hour))), len(record)+rng.IntN(50))
		p.add(at, append(buf, record...))
		if _, twice := kept[at]; twice || at.page == 0 {
			t.Fatalf("place %+v given to a second record, or to one that is not packed", at)
		}
		kept[at] = record
	}
	remove := func() {
		for at, record := range kept {
			if got := p.record(at); !bytes.Equal(got, record) {
				t.Fatalf("record at %+v has %d bytes and is not the one of %d that was added", at, len(got), len(record))
			}
			p.remove(at)
			delete(kept, at)
			return
		}
	}
	for range 20 {
		for range rng.IntN(3000) {
			add()
		}
		for range rng.IntN(3000) {
			remove()
		}
	}
	for len(kept) > 0 {
		remove()
	}
	most := 0 // one page of each age is being filled, and used again
	for _, n := range p.open {
		most += cap(p.all[n].buf)
	}
	if got := p.size(); got != most {
		t.Errorf("%d bytes are left where nothing is kept, want the %d of the pages being filled", got, most)
	}
}

// What is kept for long does not keep the memory of what goes soon.
func TestPagesGoWithTheirRecords(t *testing.T) {
	t.Parallel()
	const n, every = 20_000, 100
	var p pages
	var soon []place
	record := make([]byte, 250)
	for i := range uint64(n) {
		keep := time.Hour
		if i%every == 0 {
			keep = 30 * 24 * time.Hour
		}
		binary.LittleEndian.PutUint64(record, i)
		at, buf := p.reserve(keep, len(record))
		p.add(at, append(buf, record...))
		if i%every != 0 {
			soon = append(soon, at)
		}
	}
	before := p.size()
	for _, at := range soon {
		p.remove(at)
	}
	if after := p.size(); after > before/10 {
		t.Errorf("%d bytes of %d are still taken, want a tenth at most: one record in %d is left", after, before, every)
	}
}
