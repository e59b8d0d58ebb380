package repository

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every package for users shows by an Example how to begin. The suites take a *testing.T, which an
// Example does not have, and show it in their doc.go.
func TestPackagesHaveExamples(t *testing.T) {
	t.Parallel()
	apart := regexp.MustCompile(`^(cmd|crashtest|example-payments|examples|tests|bench)(/|$)|internal(/|$)|/proto/|^idem/idemtest$|/(exchangetest|grpctest)$|^model$|^lock/zookeeper/histories$`)
	checked := 0
	for _, p := range listPackages(t) {
		dir := relative(p.ImportPath)
		if apart.MatchString(dir) {
			continue
		}
		checked++
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "\nfunc Example")
		}
		if !found {
			t.Errorf("package %s has no Example", dir)
		}
	}
	if checked < 15 {
		t.Errorf("only %d packages were found", checked)
	}
}
