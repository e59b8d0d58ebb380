package repository

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testName finds the names of tests in a document.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)`")

// testFunction finds tests in a Go file.
var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)\(`)

// testNames are the tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	exists := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == ".matrix" {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range testFunction.FindAllStringSubmatch(string(text), -1) {
			exists[name[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return exists
}

// Every test that a document names exists. So a threat or a bug does not lose its test unnoticed.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	exists := testNames(t)
	for document, least := range map[string]int{"security.md": 50, "testing.md": 40, "around.md": 10} {
		text, err := os.ReadFile("../../docs/" + document)
		if err != nil {
			t.Fatal(err)
		}
		names := testName.FindAllStringSubmatch(string(text), -1)
		if len(names) < least {
			t.Errorf("%s names %d tests, want %d or more: the look is broken", document, len(names), least)
		}
		for _, name := range names {
			if !exists[name[1]] {
				t.Errorf("%s names %s, and there is no such test", document, name[1])
			}
		}
	}
}
