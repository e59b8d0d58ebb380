package zookeeper

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// answerFrame is an answer with a body of n bytes, whatever its zxid.
func answerFrame(xid uint32, zxid uint64, n int) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(16+n))
	f = binary.BigEndian.AppendUint32(f, xid)
	f = binary.BigEndian.AppendUint64(f, zxid)
	f = binary.BigEndian.AppendUint32(f, 0) // no error
	return append(f, bytes.Repeat([]byte{0xff}, n)...)
}

// However the answers are cut into pieces, their zxids are hidden and nothing
// else is, until the watches have been repeated.
func TestZxidsAreHiddenUntilWatchesAreRepeated(t *testing.T) {
	t.Parallel()
	var sent, want []byte
	const frames, hidden = 9, 6
	for i := range uint32(frames) {
		n := int(i) * int(i) * 7
		zxid := uint64(1)<<63 | uint64(i+1)*0x0101010101010101
		sent = append(sent, answerFrame(i, zxid, n)...)
		if i < hidden {
			zxid = 0
		}
		want = append(want, answerFrame(i, zxid, n)...)
	}
	for piece := 1; piece < len(sent)+1; piece++ {
		got := bytes.Clone(sent)
		var m zxidMask
		asked, done := 0, false
		for rest := got; len(rest) > 0 && !done; rest = rest[min(piece, len(rest)):] {
			done = m.apply(rest[:min(piece, len(rest))], func() bool { asked++; return asked > hidden })
		}
		if !bytes.Equal(got, want) || !done || asked != hidden+1 {
			t.Fatalf("in pieces of %d bytes: asked at %d frames, done %v, the answers differ: %v", piece, asked, done, !bytes.Equal(got, want))
		}
	}
}

// An answer without even a header does not lead astray; the library refuses it.
func TestZxidMaskOutlivesShortFrames(t *testing.T) {
	t.Parallel()
	p := append([]byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 2}, answerFrame(7, 9, 3)...)
	var m zxidMask
	m.apply(p, func() bool { return false })
	if want := append([]byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 2}, answerFrame(7, 0, 3)...); !bytes.Equal(p, want) {
		t.Errorf("got %x, want %x", p, want)
	}
}
