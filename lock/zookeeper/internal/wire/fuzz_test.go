package wire

import (
	"bufio"
	"bytes"
	"io"
	"testing"
)

// Whatever a server sends, the library gets as many bytes, with the zxids set to zero.
func FuzzRead(f *testing.F) {
	f.Add(answerFrame(1, 7, 20), 3)
	f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, 1)
	f.Add(append(answerFrame(-1, -1, 0), answerFrame(pingXid, 9, 5)...), 100)
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		if piece < 1 {
			return
		}
		c := &conn{t: &Transport{ctx: t.Context()}, in: bufio.NewReader(pieces{bytes.NewReader(stream), piece})}
		got, _ := io.ReadAll(c)
		if len(got) > len(stream) {
			t.Fatalf("%d bytes became %d", len(stream), len(got))
		}
		for i, b := range got {
			if b != stream[i] && b != 0 {
				t.Fatalf("byte %d of %x became %x", i, stream, b)
			}
		}
	})
}
