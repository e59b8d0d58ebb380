package servers

import (
	"testing"
)

func TestDomainsOfAnEnsemble(t *testing.T) {
	for domain, want := range map[string]bool{"e": true, "e/other-root": true, "e2": false, "f/e": false, "": false} {
		for _, own := range []string{"e", "e/root"} {
			if got := OfEnsemble(domain, own); got != want {
				t.Errorf("OfEnsemble(%q, %q) = %t, want %t", domain, own, got, want)
			}
		}
	}
	for domain, want := range map[string]string{"e": "/lock", "e/a/b": "/a/b"} {
		if got := RootOf(domain); got != want {
			t.Errorf("RootOf(%q) = %q, want %q", domain, got, want)
		}
	}
}
