// Package tree copies the module, for tools that change the copy.
package tree

import (
	"io/fs"
	"os"
	"slices"
)

// Copy copies the tree at root to a directory that it makes, without the repository's own data and binaries.
func Copy(to, root string) error { return os.CopyFS(to, sources{os.DirFS(root)}) }

// sources is the tree without what the copy does not need.
type sources struct{ fs.FS }

// ReadDir leaves out the repository's own data and binaries at the top.
func (s sources) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(s.FS, name)
	if name == "." {
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ".git" || e.Name() == "bin" })
	}
	return entries, err
}
