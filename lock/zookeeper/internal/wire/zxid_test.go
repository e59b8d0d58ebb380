package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// answerFrame is an answer with a body of n bytes.
func answerFrame(xid int32, zxid int64, n int) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(16+n))
	f = binary.BigEndian.AppendUint32(f, uint32(xid))
	f = binary.BigEndian.AppendUint64(f, uint64(zxid))
	f = binary.BigEndian.AppendUint32(f, 0) // no error
	return append(f, bytes.Repeat([]byte{0xff}, n)...)
}

// However the answers are cut into pieces, their zxids are hidden and nothing
// else is, until the watches have been repeated; and all of them are seen.
func TestZxidsAreHiddenUntilWatchesAreRepeated(t *testing.T) {
	t.Parallel()
	var sent, want []byte
	var zxids []int64
	const frames, hidden = 9, 6
	for i := range int32(frames) {
		n := int(i) * int(i) * 7
		zxid := int64(i+1) * 0x0101010101010101
		sent = append(sent, answerFrame(i, zxid, n)...)
		zxids = append(zxids, zxid)
		if i < hidden {
			zxid = 0
		}
		want = append(want, answerFrame(i, zxid, n)...)
	}
	for piece := 1; piece < len(sent)+1; piece++ {
		got := bytes.Clone(sent)
		var a answers
		var seen []int64
		asked := 0
		for rest := got; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			a.next(rest[:min(piece, len(rest))],
				func() bool { asked++; return asked <= hidden },
				func(zxid int64) { seen = append(seen, zxid) })
		}
		if !bytes.Equal(got, want) || asked != frames || !slices.Equal(seen, zxids) {
			t.Fatalf("in pieces of %d bytes: asked at %d frames, seen %x, the answers differ: %v", piece, asked, seen, !bytes.Equal(got, want))
		}
	}
}

// An answer without even a header does not lead astray; the library refuses it.
func TestZxidsAfterShortFrames(t *testing.T) {
	t.Parallel()
	short := []byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	p := slices.Concat(short, answerFrame(7, 9, 3))
	var a answers
	var seen []int64
	a.next(p, func() bool { return len(seen) == 0 }, func(zxid int64) { seen = append(seen, zxid) })
	if got := p[len(short):]; !bytes.Equal(got, answerFrame(7, 0, 3)) || !slices.Equal(seen, []int64{9}) {
		t.Errorf("got %x, seen %x; want the frame with its zxid hidden, seen 9", got, seen)
	}
}

// A session has seen what an answer showed it: not what a watch's event or a ping
// says, and never less than before.
func TestHighestZxidOfASession(t *testing.T) {
	t.Parallel()
	var tr Transport
	var a answers
	for _, f := range [][]byte{
		answerFrame(1, 0x100000005, 0),
		answerFrame(-1, -1, 30),
		answerFrame(pingXid, 0x100000009, 0),
		answerFrame(2, 0x100000007, 12),
		answerFrame(3, 0x100000006, 1),
		answerFrame(-4, 0, 0),
	} {
		a.next(f, func() bool { return true }, tr.saw)
	}
	if got := tr.zxid.Load(); got != 0x100000007 {
		t.Errorf("highest zxid seen = %#x, want %#x", got, 0x100000007)
	}
}
