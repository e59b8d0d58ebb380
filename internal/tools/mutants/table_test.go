package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

func faults(t *testing.T) []Fault {
	t.Helper()
	all, err := allFaults()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEveryFaultApplies: a fault whose code has changed has to be looked at again.
func TestEveryFaultApplies(t *testing.T) {
	names := map[string]bool{}
	for _, f := range faults(t) {
		code, err := os.ReadFile(filepath.Join(root, f.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := f.apply(string(code)); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if names[f.Name] || f.Old == f.New || f.Package == "" || f.Test == "" {
			t.Errorf("%+v: want a name of its own, a change, a package and a test", f)
		}
		names[f.Name] = true
	}
}

// A fault is about code. It survives other comments and another layout, and nothing else.
func TestFaultsSurviveAnotherLayout(t *testing.T) {
	patch := "Fault: f\nTest: ./p TestF\n--- a/p/p.go\n+++ b/p/p.go\n@@ -1,2 +1,2 @@\n if held { // by another\n-\treturn wait(\"// x\", a)\n+\treturn nil\n"
	for text, want := range map[string]string{
		"if held { // by another\n\treturn wait(\"// x\", a)\n}":                      "if held { // by another\n\treturn nil\n}",
		"if held {\n\t// It is held by somebody.\n\treturn wait(\"// x\",\n\t\ta)\n}": "if held { // by another\n\treturn nil\n}",
		"if held /* it */ { return wait(\"// x\", a) } // ends":                       "if held { // by another\n\treturn nil } // ends",
		"if held { return wait(\"// y\", a) }":                                        "",
		"if held { return wait(\"// x\", a) }; if held { return wait(\"// x\", a) }":  "",
		"// if held { return wait(\"// x\", a) }":                                     "",
		"": "",
	} {
		all, err := parseFaults(patch)
		if err != nil || len(all) != 1 || all[0].File != "p/p.go" || all[0].Package != "./p" || all[0].Test != "TestF" {
			t.Fatalf("parseFaults() = %+v, %v", all, err)
		}
		if got, err := all[0].apply(text); got != want || (err == nil) != (want != "") {
			t.Errorf("apply(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestWrongPatches(t *testing.T) {
	for _, patch := range []string{"-code\n", "Fault: f\n-code\n", "Fault: f\nTest: ./p T\n--- p.go\ncode\n"} {
		if all, err := parseFaults(patch); err == nil {
			t.Errorf("parseFaults(%q) = %+v, want an error", patch, all)
		}
	}
}

// The table is how a reader finds out what a test is known to catch.
func TestTableHasALineForEachFault(t *testing.T) {
	all := faults(t)
	_, body, _ := strings.Cut(Table(all), "|---|---|---|\n")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if len(lines) != len(all) {
		t.Fatalf("Table() has %d lines, want %d", len(lines), len(all))
	}
	for i, f := range all {
		for _, want := range []string{f.Name, f.File, f.Test} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %d of Table() = %q, want it to have %q", i+1, lines[i], want)
			}
		}
	}
}
