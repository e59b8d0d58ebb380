package ledger

import (
	"os"
	"path/filepath"
	"time"
)

const (
	embeddedFile = "ledger.db"
	embeddedDir  = "idemkeeper-payments-" // begins the name of a folder for temporary files
	// embeddedAge is that of the left-over folder of a killed process. A younger folder may
	// belong to a process that has not claimed it yet.
	embeddedAge = time.Minute
)

// makeEmbedded makes a database in a folder for temporary files, and removes it at the
// end. SQLite in memory would not do. There a reader waits for the writer, and so for
// the handler in a joined transaction.
func (l *Ledger) makeEmbedded() (name string, err error) {
	removeLeftovers()
	dir, err := os.MkdirTemp("", embeddedDir)
	if err != nil {
		return "", err
	}
	l.onClose(func() error { return os.RemoveAll(dir) })
	file := filepath.Join(dir, embeddedFile)
	// The claim tells other processes that this one lives. A system without such claims
	// keeps its left-over folders.
	if unlock, err := claimFile(file, Exclusive); err == nil {
		l.onClose(unlock)
	}
	return "sqlite:" + file, nil
}

// removeLeftovers removes the embedded databases of processes that were killed.
func removeLeftovers() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), embeddedDir+"*")) // the pattern is good
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < embeddedAge {
			continue
		}
		if unlock, err := claimFile(filepath.Join(dir, embeddedFile), Exclusive); err == nil {
			_ = os.RemoveAll(dir) // another process may remove it, too
			_ = unlock()
		}
	}
}

// claimFile claims a file of SQLite, and returns its URL.
func (l *Ledger) claimFile(file string, s Sharing) (name string, err error) {
	path, err := canonical(file)
	if err != nil {
		return "", err
	}
	unlock, err := claimFile(path, s)
	if err != nil {
		return "", err
	}
	l.onClose(unlock)
	return "sqlite:" + path, nil
}

// canonical resolves links, so that every name of a file gives the same claim.
func canonical(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // the file does not exist yet
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}
