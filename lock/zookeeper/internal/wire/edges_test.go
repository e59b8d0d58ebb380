package wire

import (
	"bytes"
	"crypto/tls"
	"strings"
	"testing"
)

func TestVersionsOfTLSThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []*tls.Config{{MinVersion: tls.VersionTLS11}, {MaxVersion: tls.VersionTLS11}} {
		if _, err := CheckTLS(cfg); err == nil || !strings.Contains(err.Error(), "1.") {
			t.Errorf("CheckTLS(%d to %d) = %v, want a refusal", cfg.MinVersion, cfg.MaxVersion, err)
		}
	}
	if got, err := CheckTLS(&tls.Config{}); err != nil || got.MinVersion != tls.VersionTLS12 {
		t.Errorf("CheckTLS() = %+v, %v, want 1.2 as the least", got, err)
	}
}

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
