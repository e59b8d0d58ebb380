package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The README's program for several instances starts on real servers. A process that starts after
// Redis has lost everything refuses, because the program has a witness.
func TestREADMEServersProgramRuns(t *testing.T) {
	t.Parallel()
	var program string
	for _, found := range regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(readme(t), -1) {
		if strings.Contains(found[1], "zookeeper.Open") {
			program = found[1]
		}
	}
	zk, redis := testserver.StartZooKeeper(t), testserver.StartRedis(t)
	for _, replace := range [][2]string{
		{`"zk1:2181", "zk2:2181", "zk3:2181"`, strconv.Quote(zk.Addr())},
		{`"redis://redis:6379"`, strconv.Quote("redis://" + redis.Addr())},
		{"_ = engine", "if err := engine.Ping(ctx); err != nil {\n\t\tlog.Fatal(err)\n\t}"},
	} {
		if !strings.Contains(program, replace[0]) {
			t.Fatalf("the README has no program with %s", replace[0])
		}
		program = strings.Replace(program, replace[0], replace[1], 1)
	}
	binary := buildREADMEProgram(t, program)
	if out, err := exec.CommandContext(t.Context(), binary).CombinedOutput(); err != nil {
		t.Fatalf("the program: %v\n%s", err, out)
	}
	if _, err := redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), binary).CombinedOutput(); err == nil || !strings.Contains(string(out), "lost") {
		t.Errorf("the program, after the loss of all records: %v, want a refusal\n%s", err, out)
	}
}

// buildREADMEProgram returns the path of the compiled program.
func buildREADMEProgram(t *testing.T, code string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "readme")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}
