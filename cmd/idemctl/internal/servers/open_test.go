package servers

import (
	"testing"
)

func TestDomainsOfAnEnsemble(t *testing.T) {
	for domain, want := range map[string]bool{"e": true, "e/other-root": true, "e2": false, "f/e": false, "": false} {
		if got := OfEnsemble(domain, "e"); got != want {
			t.Errorf("OfEnsemble(%q) = %t, want %t", domain, got, want)
		}
	}
}
