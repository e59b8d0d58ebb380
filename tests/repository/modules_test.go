package repository

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modules are the folders in scripts/modules.txt by their kind.
func modules(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../scripts/modules.txt")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 2 {
			kinds[words[0]] = append(kinds[words[0]], words[1])
		}
	}
	return kinds
}

// goMod is what the go command reads in a go.mod or in go.work.
type goMod struct {
	Module  struct{ Path string }
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Use []struct{ DiskPath string }
}

// readMod reads the go.mod of a folder of the repository, or go.work.
func readMod(t *testing.T, kind, file string) (m goMod) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", kind, "edit", "-json", file)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err != nil {
		t.Fatalf("go %s edit -json %s: %v", kind, file, err)
	}
	return m
}

// Make test, lint, the release and the other users of scripts/modules.txt miss no module.
func TestModulesAreListed(t *testing.T) {
	t.Parallel()
	var found []string
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"testdata", "bin", ".git", ".matrix"}, d.Name()):
			return fs.SkipDir
		case d.Name() == "go.mod":
			folder, err := filepath.Rel("../..", filepath.Dir(file))
			found = append(found, filepath.ToSlash(folder))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	kinds := modules(t)
	listed := slices.Concat(kinds["published"], kinds["internal"], kinds["beside"])
	slices.Sort(found)
	slices.Sort(listed)
	if !slices.Equal(found, listed) {
		t.Errorf("scripts/modules.txt has %q, and there are %q", listed, found)
	}

	work := readMod(t, "work", "go.work")
	var used []string
	for _, u := range work.Use {
		used = append(used, path.Clean(u.DiskPath))
	}
	want := slices.Concat(kinds["published"], kinds["internal"])
	slices.Sort(used)
	slices.Sort(want)
	if !slices.Equal(used, want) {
		t.Errorf("go.work uses %q, want %q", used, want)
	}
}

// Dependabot looks after every module but the library, whose requirements are the oldest versions.
func TestDependabotMissesNoModule(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../.github/dependabot.yml")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for line := range strings.Lines(string(text)) {
		if folder, found := strings.CutPrefix(strings.TrimSpace(line), "- /"); found {
			patterns = append(patterns, folder)
		}
	}
	for _, folder := range slices.Concat(modules(t)["published"], modules(t)["internal"], modules(t)["beside"]) {
		covered := slices.ContainsFunc(patterns, func(pattern string) bool {
			matches, err := path.Match(pattern, folder)
			return err == nil && matches
		})
		if covered == (folder == ".") {
			t.Errorf("dependabot looks after %s: %v", folder, covered)
		}
	}
}

// The modules of the workspace require one version of each other, under which go.work puts the folders in their place. Those
// that are published have no replace lines. Those beside the workspace replace every module of ours that they require.
func TestModulesAgree(t *testing.T) {
	t.Parallel()
	kinds, versions := modules(t), map[string]bool{}
	replaced := map[string]string{} // in go.work
	for _, r := range readMod(t, "work", "go.work").Replace {
		replaced[r.Old.Path] = path.Clean(r.New.Path)
		versions[r.Old.Version] = true
	}
	for kind, folders := range kinds {
		for _, folder := range folders {
			m := readMod(t, "mod", path.Join(folder, "go.mod"))
			if want := path.Join(module, folder); m.Module.Path != want {
				t.Errorf("%s/go.mod is module %s, want %s", folder, m.Module.Path, want)
			}
			if kind != "beside" && len(m.Replace) > 0 {
				t.Errorf("%s/go.mod has replace lines, with which go install refuses a module", folder)
			}
			ours := map[string]bool{}
			for _, r := range m.Replace {
				if within(r.Old.Path, module) {
					ours[r.Old.Path] = true
				}
			}
			for _, r := range m.Require {
				switch ofOurs := within(r.Path, module); {
				case ofOurs && kind == "beside" && !ours[r.Path]:
					t.Errorf("%s/go.mod does not replace %s", folder, r.Path)
				case ofOurs && kind != "beside":
					versions[r.Version] = true
				}
			}
		}
	}
	for _, r := range readMod(t, "work", "scripts/minimum.work").Replace {
		versions[r.Old.Version] = true
	}
	for _, folder := range kinds["published"] {
		if p := path.Join(module, folder); replaced[p] != folder {
			t.Errorf("go.work replaces %s by %q, want %q", p, replaced[p], folder)
		}
	}
	if len(versions) != 1 {
		t.Errorf("modules of the workspace require %v of each other, want one version", versions)
	}
}
