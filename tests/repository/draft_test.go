package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever cites the draft of the header says that it has expired, because it is no standard that a
// reader can rely on.
func TestDraftIsCitedAsExpired(t *testing.T) {
	t.Parallel()
	const draft, end = "draft-ietf-httpapi-idempotency-" + "key-header", "expired on 2026-04-18"
	cmd := exec.CommandContext(t.Context(), "git", "grep", "-l", draft)
	cmd.Dir = "../.."
	files, err := cmd.Output()
	if err != nil {
		t.Fatalf("git grep: %v", err)
	}
	found := 0
	for file := range strings.FieldsSeq(string(files)) {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), draft)
		for part := range strings.SplitSeq(rest, draft) {
			found++
			if !strings.Contains(part[:min(len(part), 120)], end) {
				t.Errorf("%s cites the draft and does not say that it %s", file, end)
			}
		}
	}
	if found < 5 {
		t.Errorf("the draft is cited %d times, want 5 or more: the look is broken", found)
	}
}
