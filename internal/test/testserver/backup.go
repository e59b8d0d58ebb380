package testserver

import (
	"os"
	"path/filepath"
)

// Backup copies the data of a server that is down, and returns the copy's directory.
func (z *ZooKeeper) Backup() string {
	z.tb.Helper()
	dir := z.tb.TempDir()
	if err := os.CopyFS(dir, os.DirFS(z.data)); err != nil {
		z.tb.Fatalf("testserver: back up %s: %v", z.prog.name, err)
	}
	return dir
}

// Restore replaces the data of a server that is down by that of a Backup.
func (z *ZooKeeper) Restore(backup string) {
	z.tb.Helper()
	err := os.RemoveAll(filepath.Join(z.data, "version-2"))
	if err == nil {
		err = os.CopyFS(filepath.Join(z.data, "version-2"), os.DirFS(filepath.Join(backup, "version-2")))
	}
	if err != nil {
		z.tb.Fatalf("testserver: restore %s: %v", z.prog.name, err)
	}
}

// Backup copies the data of all members, which are down on return.
func (e *Ensemble) Backup() (backups []string) {
	e.tb.Helper()
	for _, z := range e.members {
		z.Stop()
	}
	for _, z := range e.members {
		backups = append(backups, z.Backup())
	}
	return backups
}

// Restore stops all members, replaces their data by that of a Backup, and starts them.
func (e *Ensemble) Restore(backups []string) {
	e.tb.Helper()
	for _, z := range e.members {
		z.Stop()
	}
	for i, z := range e.members {
		z.Restore(backups[i])
	}
	e.RestartAll()
}
