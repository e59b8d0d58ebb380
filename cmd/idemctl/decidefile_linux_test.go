package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A result file that was cut off in its last line is gone on with, and one of another origin is left alone.
func TestResultFiles(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	for i := range 4 {
		s.doubt(fmt.Sprint("k", i), nil)
	}
	n := 0
	file := s.export(func(string) (decision, answer string) {
		if n++; n > 2 {
			return "", ""
		}
		return "not-applied", ""
	})
	results := file + ".results.csv"
	s.decide(0, "2 settled", file)
	whole := s.read(results)
	for cut := len(whole) - 1; cut > 0; cut -= 37 {
		s.write(results, whole[:cut])
		s.decide(0, "0 settled", file)
		rows, err := csv.NewReader(strings.NewReader(s.read(results))).ReadAll()
		if err != nil || len(rows) != 3 {
			t.Errorf("cut off after %d bytes: %q, %v, want two results", cut, rows, err)
		}
	}
	for _, foreign := range []string{"important", "important\n", "key_id,line\n1,2\n", whole + "\"\n", whole + "1,2\n"} {
		s.write(results, foreign)
		s.decide(cli.ExitUsage, "doubts.csv.results.csv", file)
		if got := s.read(results); got != foreign {
			t.Errorf("%q became %q", foreign, got)
		}
	}
	s.write(results, whole)
	held, err := os.Open(results)
	if err == nil {
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.decide(cli.ExitNothing, "locked, probably by another run", file)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	// A line that says something else now is tried, and is told what stands.
	s.write("a.json", paid)
	s.edit(file, s.read(file), func(row map[string]string) {
		if row["decision"] != "" {
			row["decision"], row["answer"] = "applied", "a.json"
		}
	})
	s.decide(cli.ExitFailed, "2 changed since", file)
}

// The run stops when its result file cannot be written, says what the file lacks, and can be repeated.
func TestDiskFillsUpUnderTheResultFile(t *testing.T) {
	t.Parallel()
	if !testserver.CanFillDisks() {
		t.Skip("needs a right to mount")
	}
	s := onRedis(t)
	const keys = 120
	for i := range keys {
		s.doubt(fmt.Sprint("k", i), nil)
	}
	file := s.export(allNotApplied)
	disk := t.TempDir()
	if err := syscall.Mount(fmt.Sprint("idemkeeper-disk-", os.Getpid()), disk, "tmpfs", 0, "size=12k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, 0) })
	results := filepath.Join(disk, "results.csv")
	got := s.decide(cli.ExitFailed, "no space left on device", file, "--results", results, "--rate", "0")
	settled := s.states(keys)[driver.StateReleased]
	written := strings.Count(s.read(results), `,"settled",`)
	said := strings.Count(got.stderr, ": settled")
	if settled == keys || written == 0 || !strings.HasSuffix(s.read(results), "\n") {
		t.Errorf("%d of %d settled, and %d results in %q", settled, keys, written, s.read(results))
	}
	if settled != written+said {
		t.Errorf("%d are settled, %d results are written and %d printed:\n%s", settled, written, said, got.stderr)
	}
	if err := syscall.Mount("", disk, "tmpfs", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	s.decide(0, fmt.Sprintf("%d settled, %d already settled, 0 changed since, 0 locked, 0 failed; %d by an earlier run", keys-settled, settled-written, written), file, "--results", results, "--rate", "0")
	if n := strings.Count(s.read(results), "settled"); n != keys {
		t.Errorf("%d results, want %d", n, keys)
	}
}
