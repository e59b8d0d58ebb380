package wire

import (
	"bytes"
	"testing"
)

// A request that is too short for a connect passes as it is. The server refuses it.
func TestShortConnect(t *testing.T) {
	t.Parallel()
	for _, request := range [][]byte{nil, {1, 2, 3}, make([]byte, zxidEnd-1)} {
		if got := resume(request, 7); !bytes.Equal(got, request) {
			t.Errorf("resume(%x) = %x", request, got)
		}
	}
	if h := (&Hosts{servers: []string{"a", "b"}}); h.Len() != 2 {
		t.Errorf("Len() = %d, want 2", h.Len())
	}
}
