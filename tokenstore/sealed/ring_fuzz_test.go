package sealed

import (
	"strings"
	"testing"
)

// Errors and names of a ring show no part of its keys.
func FuzzParseRing(f *testing.F) {
	f.Add("a=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,b=AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=")
	f.Add("a=x")
	f.Add("=")
	f.Fuzz(func(t *testing.T, list string) {
		ring, err := ParseRing(list)
		said := ""
		if err != nil {
			said = err.Error()
		} else {
			said = ring.String()
		}
		for pair := range strings.SplitSeq(list, ",") {
			if _, text, _ := strings.Cut(pair, "="); len(text) > 16 && strings.Contains(said, text) {
				t.Errorf("ParseRing(%q) shows a key: %s", list, said)
			}
		}
	})
}
