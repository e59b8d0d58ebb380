// Package tree copies the module, for tools that change the copy.
package tree

import (
	"io/fs"
	"os"
	"slices"
)

// Copy copies the tree at root to a directory that it makes, without the repository's own data, binaries and the servers of make matrix.
func Copy(to, root string) error { return os.CopyFS(to, sources{os.DirFS(root)}) }

// sources is the tree without what the copy does not need.
type sources struct{ fs.FS }

// ReadDir leaves them out at the top.
func (s sources) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(s.FS, name)
	if name == "." {
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return slices.Contains([]string{".git", ".matrix", "bin"}, e.Name()) })
	}
	return entries, err
}
