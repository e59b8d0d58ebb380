package main

import (
	"os"
	"strings"
	"testing"
)

// docs/dependencies.md says how many modules a service gets into its graph. A failure names them.
func TestServicesHaveAsManyModulesAsThePageSays(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a server, left out under -short") // the module proxy, for go mod tidy; it is the text of testserver.LeftOut, which make quick counts
	}
	page, err := os.ReadFile("../../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := readTree("../../..")
	if err != nil {
		t.Fatal(err)
	}
	p, err := tree.publish(t.Context(), tree.version())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	for _, name := range services {
		s, err := p.build(t.Context(), name, false)
		if err != nil {
			t.Fatal(err)
		}
		if row := s.row() + "\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/dependencies.md has no line\n%s\nThrough Idemkeeper come in: %s", row, s.names())
		}
	}
}

func TestTags(t *testing.T) {
	t.Parallel()
	for folder, want := range map[string]string{".": "v0.1.0", "cmd/idemctl": "cmd/idemctl/v0.1.0"} {
		if got := tag(folder, "v0.1.0"); got != want {
			t.Errorf("tag(%q) = %q, want %q", folder, got, want)
		}
	}
}
