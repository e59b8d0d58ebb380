package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// tree is the repository.
type tree struct {
	root      string
	published []string                 // folders, each after those that its module requires
	mods      map[string]*modfile.File // of all modules by their folders
}

func readTree(root string) (*tree, error) {
	list, err := os.ReadFile(filepath.Join(root, "scripts", "modules.txt"))
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, mods: map[string]*modfile.File{}}
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		if len(words) != 2 {
			continue // a comment
		}
		kind, folder := words[0], words[1]
		if kind == "published" {
			t.published = append(t.published, folder)
		}
		text, err := os.ReadFile(filepath.Join(root, folder, "go.mod"))
		if err != nil {
			return nil, err
		}
		if t.mods[folder], err = modfile.Parse(path.Join(folder, "go.mod"), text, nil); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// pathOf is the path of a folder's module.
func (t *tree) pathOf(folder string) string { return path.Join(t.mods["."].Module.Mod.Path, folder) }

// version is the one that the modules require of each other.
func (t *tree) version() string {
	for _, folder := range t.published {
		for _, r := range t.mods[folder].Require {
			if t.ours(r.Mod.Path) {
				return r.Mod.Version
			}
		}
	}
	return ""
}

// requirement is the version of the module with a package, as the modules require it.
func (t *tree) requirement(pkg string) (found module.Version) {
	for _, folder := range t.published {
		for _, r := range t.mods[folder].Require {
			if (pkg == r.Mod.Path || strings.HasPrefix(pkg, r.Mod.Path+"/")) && len(r.Mod.Path) > len(found.Path) {
				found = r.Mod
			}
		}
	}
	return found
}

// proxy is a folder with versions of the published modules, and the settings of a go command that uses it.
type proxy struct {
	tree    *tree
	version string
	dir     string
	env     []string
}

// publish packs the published modules. Other modules come from the module cache, and those that it lacks from the usual proxy.
// The versions are not released, so they must not get into the cache of this machine.
func (t *tree) publish(ctx context.Context, version string) (*proxy, error) {
	dir, err := os.MkdirTemp("", "idemkeeper-release-")
	if err != nil {
		return nil, err
	}
	p := &proxy{tree: t, version: version, dir: dir}
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	words := strings.Fields(string(out))
	p.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -modcacherw", "GOBIN="+filepath.Join(dir, "bin"), "GOMODCACHE="+filepath.Join(dir, "cache"),
		"GONOSUMDB="+t.pathOf("."), "GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+words[0]+"/cache/download,"+words[1])
	files, err := t.git(ctx, "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	for _, folder := range t.published {
		if err := p.pack(folder, strings.Fields(files)); err != nil {
			return nil, fmt.Errorf("pack %s: %w", folder, err)
		}
	}
	return p, nil
}

// Close removes the folder.
func (p *proxy) Close() error { return os.RemoveAll(p.dir) }

// pack writes what the module proxy has of a version.
func (p *proxy) pack(folder string, files []string) error {
	m := module.Version{Path: p.tree.pathOf(folder), Version: p.version}
	var content []zip.File
	for _, f := range files {
		if p.tree.folderOf(f) != folder {
			continue
		}
		if _, err := os.Stat(filepath.Join(p.tree.root, f)); err != nil {
			continue // removed, and not committed yet
		}
		name, err := filepath.Rel(folder, f)
		if err != nil {
			return err
		}
		content = append(content, file{name, filepath.Join(p.tree.root, f)})
	}
	if folder != "." { // the go command takes the licence of the repository, too
		content = append(content, file{"LICENSE", filepath.Join(p.tree.root, "LICENSE")})
	}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.dir, "proxy", escaped, "@v")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": p.version, "Time": time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	mod, err := p.tree.mods[folder].Format()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(p.version + "\n"), p.version + ".info": info, p.version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	out, err := os.Create(filepath.Join(dir, p.version+".zip"))
	if err != nil {
		return err
	}
	if err := zip.Create(out, m, content); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

// folderOf is the folder of the module that has a file.
func (t *tree) folderOf(name string) (folder string) {
	folder = "."
	for f := range t.mods {
		if strings.HasPrefix(name, f+"/") && len(f) > len(folder) {
			folder = f
		}
	}
	return folder
}

// file is a file of a zip.
type file struct{ name, on string }

func (f file) Path() string                 { return f.name }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(f.on) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(f.on) }

// command runs a program with the settings of the proxy.
func (p *proxy) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, p.env
	var told strings.Builder
	cmd.Stderr = &told
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, told.String())
	}
	return string(out), nil
}

// install installs a command as its users do, and runs it.
func (p *proxy) install(ctx context.Context, folder string) error {
	if _, err := p.command(ctx, p.dir, "go", "install", p.tree.pathOf(folder)+"@"+p.version); err != nil {
		return err
	}
	_, err := p.command(ctx, p.dir, filepath.Join(p.dir, "bin", path.Base(folder)), "--help")
	return err
}
