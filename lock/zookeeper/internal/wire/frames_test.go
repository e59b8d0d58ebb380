package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
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

// pieces reads a stream n bytes at a time.
type pieces struct {
	io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(p.n, len(b))]) }

// passed is what the library reads of a stream that comes n bytes at a time, and the
// highest zxid that the transport has seen.
func passed(t *testing.T, stream []byte, n int) (got []byte, zxid int64) {
	t.Helper()
	c := &conn{t: new(Transport), in: bufio.NewReader(pieces{bytes.NewReader(stream), n})}
	got = make([]byte, len(stream))
	if _, err := io.ReadFull(pieces{c, n}, got); err != nil {
		t.Fatalf("Read() in pieces of %d bytes = %v", n, err)
	}
	return got, c.t.zxid.Load()
}

// However the answers are cut into pieces, their zxids are seen and hidden. All the rest
// passes unchanged.
func TestZxidsAreHidden(t *testing.T) {
	t.Parallel()
	var sent, want []byte
	const frames, step = 9, 0x0101010101010101
	for i := range int32(frames) {
		n := int(i) * int(i) * 7
		sent = append(sent, answerFrame(i, int64(i+1)*step, n)...)
		want = append(want, answerFrame(i, 0, n)...)
	}
	for piece := 1; piece < len(sent)+1; piece++ {
		got, zxid := passed(t, sent, piece)
		if !bytes.Equal(got, want) || zxid != frames*step {
			t.Fatalf("in pieces of %d bytes: highest zxid %#x, want %#x; the answers differ: %v", piece, zxid, frames*step, !bytes.Equal(got, want))
		}
	}
}

// An answer without even a header does not lead astray. The library refuses it.
func TestZxidsAfterShortFrames(t *testing.T) {
	t.Parallel()
	short := []byte{0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	got, zxid := passed(t, slices.Concat(short, answerFrame(7, 9, 3)), 1<<10)
	if want := slices.Concat(short, answerFrame(7, 0, 3)); !bytes.Equal(got, want) || zxid != 9 {
		t.Errorf("Read() = %x, zxid %d; want %x, zxid 9", got, zxid, want)
	}
}

// A session has seen the zxids of its answers. A watch event and a ping show it nothing,
// and it never has seen less than before.
func TestHighestZxidOfASession(t *testing.T) {
	t.Parallel()
	_, zxid := passed(t, slices.Concat(
		answerFrame(1, 0x100000005, 0),
		answerFrame(-1, -1, 30),
		answerFrame(pingXid, 0x100000009, 0),
		answerFrame(2, 0x100000007, 12),
		answerFrame(3, 0x100000006, 1),
		answerFrame(-4, 0, 0),
	), 1<<10)
	if zxid != 0x100000007 {
		t.Errorf("highest zxid seen = %#x, want %#x", zxid, 0x100000007)
	}
}
