package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// make apicheck tells a compatible change from an incompatible one, in a small repository with a tag.
func TestAPICheck(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(testserver.LeftOut) // it builds apidiff
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^APIDIFF_VERSION +:= (\S+)$`).FindSubmatch(makefile)
	script, err := filepath.Abs("../../scripts/apicheck.sh")
	if err != nil || version == nil {
		t.Fatalf("version %q, %v", version, err)
	}
	tools, err := filepath.Abs("../../bin") // apidiff is built once
	if err == nil {
		err = os.MkdirAll(tools, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	const (
		public   = "package a\n\nfunc Kept() {}\n"
		more     = public + "\nfunc Added() {}\n"
		less     = "package a\n\nfunc Added() {}\n"
		changes  = "# Changelog\n\n## Unreleased\n\n### Engine\n\n## v0.1.0\n\n### Incompatible changes\n"
		breaking = "# Changelog\n\n## Unreleased\n\n### Incompatible changes\n\n- `Kept` has gone.\n"
	)
	for _, tt := range []struct {
		name, tag     string
		a, sample     string // the packages afterwards; they were public
		changelog     string
		code          int
		says, saysNot string
	}{
		{"no tag", "", less, public, changes, 0, "no tag yet", ""},
		{"compatible", "v0.1.0", more, public, changes, 0, "compatible with v0.1.0", "incompatible"},
		{"not for users", "v0.1.0", public, less, changes, 0, "compatible with v0.1.0", "incompatible"},
		{"incompatible", "v0.1.0", less, public, changes, 1, "Kept: removed", "allowed"},
		{"incompatible and told below v1", "v0.1.0", less, public, breaking, 0, "allowed below v1.0.0", ""},
		{"incompatible and told from v1 on", "v1.2.0", less, public, breaking, 1, "incompatible with v1.2.0", "allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) { // one after the other: the first one builds apidiff
			dir := t.TempDir()
			write := func(name, text string) {
				file := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			run := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
					"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			git := func(args ...string) {
				if out, err := run("git", args...); err != nil {
					t.Fatalf("git %q: %v\n%s", args, err, out)
				}
			}
			write("go.mod", "module example.com/m\n\ngo 1.26.0\n")
			write("a/a.go", public)
			write("example-payments/a.go", public)
			git("init", "-q")
			git("add", ".")
			git("commit", "-qm", "Begin")
			if tt.tag != "" {
				git("tag", tt.tag)
			}
			write("a/a.go", tt.a)
			write("example-payments/a.go", tt.sample)
			write("CHANGELOG.md", tt.changelog)
			if err := os.Symlink(tools, filepath.Join(dir, "bin")); err != nil {
				t.Fatal(err)
			}
			out, err := run("bash", script, string(version[1]))
			code := 0
			if err != nil {
				code = 1
			}
			if code != tt.code || !strings.Contains(out, tt.says) || tt.saysNot != "" && strings.Contains(out, tt.saysNot) {
				t.Errorf("exit code %d (%v) with\n%s\nwant %d with %q", code, err, out, tt.code, tt.says)
			}
		})
	}
}
