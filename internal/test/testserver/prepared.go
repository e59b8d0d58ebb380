package testserver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// prepared makes an empty database's data directory by a copy of one that was made before. To make
// one takes some two seconds, and a run of all tests starts dozens of databases. cmd makes the directory
// data, and runs if there is no copy yet. The copies are in the user's cache directory, one for each
// program and its arguments. If the copy fails, the directory is made anew.
func prepared(cmd *exec.Cmd, data string) error {
	kept, err := preparedDir(cmd, data)
	if err == nil {
		_, err = os.Stat(kept)
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if err == nil && copyTree(kept, data) == nil {
		return nil
	}
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := run(cmd); err != nil {
		return err
	}
	if missing {
		keepPrepared(data, kept)
	}
	return nil
}

// preparedDir names the copy of what cmd makes. A program that was replaced has another copy.
func preparedDir(cmd *exec.Cmd, data string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program, err := os.Stat(cmd.Path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, cmd.Path, program.Size(), program.ModTime().UnixNano(), os.Getuid())
	for _, arg := range cmd.Args[1:] {
		fmt.Fprintln(h, strings.ReplaceAll(arg, filepath.Dir(data), "")) // without the path of this server
	}
	return filepath.Join(cache, "idemkeeper-test", fmt.Sprintf("%s-%x", filepath.Base(cmd.Path), h.Sum(nil)[:8])), nil
}

// keepPrepared copies data to kept. Another process may do the same at this moment, and one of the
// two wins. A failure costs only time.
func keepPrepared(data, kept string) {
	if os.MkdirAll(filepath.Dir(kept), 0o700) != nil {
		return
	}
	dir, err := os.MkdirTemp(filepath.Dir(kept), "new-")
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	if copyTree(data, filepath.Join(dir, "data")) == nil {
		_ = os.Rename(filepath.Join(dir, "data"), kept)
	}
}

// copyTree copies a directory with its owners and modes to a path that does not exist.
func copyTree(from, to string) error {
	return exec.Command("cp", "-a", from, to).Run()
}

// run runs a command to its end. The error holds what it has printed.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("testserver: %s: %w\n%s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
