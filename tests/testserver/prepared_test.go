package testserver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The second server has a copy of the first one's empty data, as the copy in the cache was when it began.
func TestDataDirectoriesAreCopies(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	first := testserver.StartPostgres(t)
	kept, err := filepath.Glob(filepath.Join(cache, "idemkeeper-test", "initdb-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("after the first start the cache has %q, %v, want one directory", kept, err)
	}
	if _, err := os.Stat(filepath.Join(kept[0], "postmaster.pid")); !os.IsNotExist(err) {
		t.Errorf("the copy has a file of the running server (%v)", err)
	}
	mark := filepath.Join(kept[0], "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second := testserver.StartPostgres(t)
	if first.Addr() == second.Addr() {
		t.Errorf("both servers are at %s", first.Addr())
	}
	if marks, err := filepath.Glob(filepath.Join(os.TempDir(), "idemkeeper-postgres-*", "data", "mark")); err != nil || len(marks) == 0 {
		t.Errorf("the second server's data are no copy: %q, %v", marks, err)
	}
}
