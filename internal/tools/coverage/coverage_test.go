package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func profile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A statement that one of the test binaries has run counts once, as reached.
func TestReportJoinsProfiles(t *testing.T) {
	t.Parallel()
	one := profile(t, "mode: set\nm/a/x.go:10.1,12.2 3 0\nm/a/x.go:9.1,9.9 1 1\nm/b/y.go:1.1,2.2 1 1\n")
	two := profile(t, "mode: atomic\nm/a/x.go:10.1,12.2 3 7\nm/a/z.go:2.1,3.1 4 0\nm/a/x.go:9.1,9.9 1 0\n")
	for _, tt := range []struct {
		least float64
		ok    bool
	}{{50, true}, {50.1, false}} {
		var out strings.Builder
		ok, err := report(&out, []string{one, two}, tt.least, true)
		want := "m/a/z.go:2.1,3.1\nCOVER  50.0 % of    8  m/a"
		if err != nil || ok != tt.ok || !strings.HasPrefix(out.String(), want) || !strings.Contains(out.String(), "COVER 100.0 % of    1  m/b\n") {
			t.Errorf("report() at least %v = %v, %v:\n%s\nwant %v and %s", tt.least, ok, err, out.String(), tt.ok, want)
		}
		if below := strings.Contains(out.String(), "m/a  BELOW 50"); below == tt.ok {
			t.Errorf("report() at least %v:\n%s", tt.least, out.String())
		}
	}
}

func TestReportRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "mode: set\n", "m/a/x.go:1.1,2.2 x 1\n", "FAIL\n"} {
		if ok, err := report(&strings.Builder{}, []string{profile(t, text)}, 0, false); ok || err == nil {
			t.Errorf("report(%q) = %v, %v, want an error", text, ok, err)
		}
	}
	if _, err := report(&strings.Builder{}, []string{"missing"}, 0, false); err == nil {
		t.Error("a missing profile is no error")
	}
}

func TestLinesAreInOrder(t *testing.T) {
	t.Parallel()
	if byLine("a.go:9.1,9.2", "a.go:10.1,11.2") >= 0 || byLine("a.go:9.1,9.2", "b.go:1.1,1.2") >= 0 || byLine("a.go:9.1,9.2", "a.go:9.1,9.2") != 0 {
		t.Error("lines are not sorted by file and number")
	}
}
