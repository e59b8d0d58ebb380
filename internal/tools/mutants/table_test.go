package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

// TestEveryFaultApplies: a fault whose text has changed has to be looked at again.
func TestEveryFaultApplies(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutants() {
		code, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Error(err)
		}
		if n := strings.Count(string(code), m.Old); n != 1 {
			t.Errorf("%s: %s has the text %d times, want once:\n%s", m.Name, m.File, n, m.Old)
		}
		if names[m.Name] || m.Old == m.New || m.Package == "" || m.Test == "" {
			t.Errorf("%+v: want a name of its own, a change, a package and a test", m)
		}
		names[m.Name] = true
	}
}

func TestFaultsAreInTheDocument(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs/testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), Table()) {
		t.Error("docs/testing.md has another table of faults; go run ./internal/tools/mutants -table prints it")
	}
	quick := 0
	for _, m := range mutants() {
		if !m.Server {
			quick++
		}
	}
	for _, want := range []string{fmt.Sprintf("each of %d deliberate faults", len(mutants())), fmt.Sprintf("the %d quick ones", quick)} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("docs/testing.md does not say %q", want)
		}
	}
}
