package memorystore

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"
)

// pages keep packed records, many in one allocation, which the garbage collector
// need not look into. A page that has no record left goes as a whole. So that no
// record keeps a page of others that are long gone, those share one that are kept
// for about as long: each for at most twice as long as any other.
type pages struct {
	all   []page // by number; 0 is none
	spare []uint32
	open  [maxAges]uint32 // the page of each age that is being filled; 0: none
}

// page is bytes, and how many records in them are still there.
type page struct {
	buf  []byte
	kept int
}

// Pages double from the first of an age to the last, so that few records do not
// take much memory.
const (
	minPage = 1 << 10
	maxPage = 64 << 10
)

// maxAges is how many ages there are: seconds, rounded up to a power of two, and
// the last for all that is longer, which is 68 years.
const maxAges = 32

func ageOf(keep time.Duration) int {
	return min(bits.Len64(uint64(max(keep, 0)/time.Second)), maxAges-1)
}

// place is where a record is: at an offset of a page, or, where the page is 0,
// among the records that are not packed, by number.
type place struct {
	page, at uint32
}

// lengthBytes are in front of each record.
const lengthBytes = 4

// reserve returns a place for a record of at most size bytes that is kept for so
// long, and where to append it before [pages.add].
func (p *pages) reserve(keep time.Duration, size int) (at place, buf []byte) {
	n := p.room(ageOf(keep), lengthBytes+size)
	pg := &p.all[n]
	end := len(pg.buf) + lengthBytes
	return place{n, uint32(len(pg.buf))}, pg.buf[end : end : end+size]
}

// add keeps a record that was appended where reserve said.
func (p *pages) add(at place, record []byte) {
	pg := &p.all[at.page]
	pg.buf = pg.buf[:int(at.at)+lengthBytes+len(record)]
	if len(record) > 0 && &record[0] != &pg.buf[int(at.at)+lengthBytes] {
		panic("tokenstore/memory: a record is larger than it was said to be")
	}
	binary.BigEndian.PutUint32(pg.buf[at.at:], uint32(len(record)))
	pg.kept++
}

// room returns a page of an age that has room for so many bytes.
func (p *pages) room(age, size int) uint32 {
	next := minPage
	if n := p.open[age]; n != 0 {
		pg := &p.all[n]
		if cap(pg.buf)-len(pg.buf) >= size {
			return n
		}
		next = min(2*cap(pg.buf), maxPage)
		p.open[age] = 0
		if pg.kept == 0 {
			p.free(n)
		}
	}
	if len(p.all) == 0 {
		p.all = make([]page, 1)
	}
	var n uint32
	if last := len(p.spare) - 1; last >= 0 {
		n, p.spare = p.spare[last], p.spare[:last]
	} else {
		n = uint32(len(p.all))
		p.all = append(p.all, page{})
	}
	p.all[n].buf = make([]byte, 0, max(next, size))
	p.open[age] = n
	return n
}

// record returns the bytes of a record.
func (p *pages) record(at place) []byte {
	buf := p.all[at.page].buf[at.at:]
	return buf[lengthBytes:][:binary.BigEndian.Uint32(buf)]
}

// remove removes a record. The page that is being filled is used from its start
// again, when it is empty.
func (p *pages) remove(at place) {
	pg := &p.all[at.page]
	if pg.kept--; pg.kept > 0 {
		return
	}
	if slices.Contains(p.open[:], at.page) {
		pg.buf = pg.buf[:0]
		return
	}
	p.free(at.page)
}

func (p *pages) free(n uint32) {
	p.all[n] = page{}
	p.spare = append(p.spare, n)
}
