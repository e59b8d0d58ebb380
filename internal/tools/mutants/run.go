package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	copied "github.com/idemkeeper/idemkeeper/internal/tools/tree"
)

// run tries the faults in a copy of the tree.
func run(ctx context.Context, chosen []Mutant, whole bool) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copied.Copy(filepath.Join(dir, "tree"), "."); err != nil {
		return err
	}
	t := tree(filepath.Join(dir, "tree"))
	failed := 0
	if !whole {
		failed = t.sound(ctx, chosen)
	}
	caught := 0
	for i := range chosen {
		m := &chosen[i]
		verdict, err := t.try(ctx, m, whole)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			failed++
			fmt.Fprintf(os.Stdout, "FAILED  %s: %v\n", m.Name, err)
		default:
			caught++
			fmt.Fprintf(os.Stdout, "caught  %s: %s\n", m.Name, verdict)
		}
	}
	fmt.Fprintf(os.Stdout, "%d caught, %d failed\n", caught, failed)
	if failed > 0 {
		return errors.New("not every fault is caught")
	}
	return nil
}

// The simulation catches some faults, within so many seeds. It does not make their plans smaller.
const (
	simulation = "./tests/simulate"
	seeds      = "300"
)

// tree is the directory of the copy.
type tree string

// sound runs the tests without any fault. It returns how many did not pass.
func (t tree) sound(ctx context.Context, chosen []Mutant) (failed int) {
	type group struct{ pkg, name string }
	tests := map[group][]string{} // whole tests of a package run together, and each subtest alone
	for _, m := range chosen {
		g := group{pkg: m.Package}
		if strings.Contains(m.Test, "/") {
			g.name = m.Test
		}
		if !slices.Contains(tests[g], m.Test) {
			tests[g] = append(tests[g], m.Test)
		}
	}
	for g, names := range tests {
		out, _ := t.test(ctx, g.pkg, strings.Join(names, "|"))
		if ctx.Err() != nil {
			return failed
		}
		for _, name := range names {
			if !bytes.Contains(out, []byte("--- PASS: "+name+" ")) {
				failed++
				fmt.Fprintf(os.Stdout, "FAILED  %s in %s does not pass without a fault:\n%s\n", name, g.pkg, tail(out))
			}
		}
	}
	return failed
}

// try puts a fault into the copy, runs its test and takes the fault out again. It returns what
// caught the fault.
func (t tree) try(ctx context.Context, m *Mutant, whole bool) (verdict string, err error) {
	file := filepath.Join(string(t), m.File)
	sound, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(sound), m.Old); n != 1 {
		return "", fmt.Errorf("%s has the text %d times, want once:\n%s", m.File, n, m.Old)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(sound), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(file, sound, 0o600)) }()
	name := m.Test
	if whole {
		name = ""
	}
	out, ok := t.test(ctx, m.Package, name)
	switch {
	case ok:
		return "", errors.New("nothing notices it")
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return "", fmt.Errorf("it does not compile:\n%s", tail(out))
	case whole:
		return strings.Join(slices.Compact(failures(out)), " "), nil
	case bytes.Contains(out, []byte("--- FAIL: "+m.Test)), bytes.Contains(out, []byte("panic: ")), bytes.Contains(out, []byte("fatal error: ")):
		return m.Test, nil
	}
	return "", fmt.Errorf("another failure:\n%s", tail(out))
}

// test runs tests of a package by their names, or all of them.
func (t tree) test(ctx context.Context, pkg, names string) (out []byte, ok bool) {
	args := []string{"test", "-count=1", "-v", "-failfast", "-vet=off", "-timeout=5m"}
	if names != "" {
		args = append(args, "-run", "^("+strings.ReplaceAll(names, "/", ")$/^(")+")$")
	}
	args = append(args, pkg)
	if pkg == simulation {
		args = append(args, "-args", "-seeds="+seeds, "-tries=0")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = string(t)
	out, err := cmd.CombinedOutput()
	return out, err == nil
}

var failing = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^panic: .*|^fatal error: .*`)

// failures are the top-level tests that failed.
func failures(out []byte) (names []string) {
	for _, m := range failing.FindAllSubmatch(out, -1) {
		name := string(m[1])
		if name == "" {
			name = string(m[0])
		}
		names = append(names, name)
	}
	return names
}

// tail is the end of an output.
func tail(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
