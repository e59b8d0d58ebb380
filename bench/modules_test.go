package bench

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// section is where docs/dependencies.md accounts for this module.
const section = "## Measured beside, in bench/ only"

// What is measured beside the library must not become a dependency of it or of its programs, and
// everything that this module requires is accounted for.
func TestModules_PeersStayHere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, own, found := strings.Cut(string(text), section)
	if !found {
		t.Fatalf("docs/dependencies.md has no section %q", section)
	}
	own, _, _ = strings.Cut(own, "\n## ")

	workspace := make(map[string]bool)
	for _, module := range []string{"..", "../internal/database", "../example-payments", "../tests"} {
		for _, r := range requirements(t, module+"/go.mod") {
			workspace[r.Path] = true
			if strings.Contains(own, "| `"+r.Path+"` |") {
				t.Errorf("%s requires %s, which is there for bench/ only", module, r.Path)
			}
		}
	}
	for _, r := range requirements(t, "go.mod") {
		ours := strings.HasPrefix(r.Path, "github.com/idemkeeper/idemkeeper")
		if !r.Indirect && !workspace[r.Path] && !ours && !strings.Contains(own, "| `"+r.Path+"` |") {
			t.Errorf("bench/ requires %s, of which docs/dependencies.md has no line under %q", r.Path, section)
		}
	}
}

type requirement struct {
	Path     string
	Indirect bool
}

func requirements(t *testing.T, file string) []requirement {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatalf("go mod edit -json %s = %v, want requirements", file, err)
	}
	var mod struct{ Require []requirement }
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require) == 0 {
		t.Fatalf("%s requires nothing", file)
	}
	return mod.Require
}
