package line

import (
	"strings"
	"testing"
)

// Any client may make a child with any name in a line.
func FuzzParse(f *testing.F) {
	f.Add("lock-" + strings.Repeat("a", uniqueLen) + "00-0000000007")
	f.Add("lock-" + strings.Repeat("a", uniqueLen) + "ff--000000001")
	f.Add("-")
	f.Fuzz(func(t *testing.T, name string) {
		p, ok := Parse(name)
		if !ok {
			return
		}
		if p.Name != name || !strings.HasPrefix(name, p.Role+"-"+p.Unique()) {
			t.Errorf("Parse(%q) = %+v, unique %q", name, p, p.Unique())
		}
	})
}
