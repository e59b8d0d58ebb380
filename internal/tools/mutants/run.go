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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	copied "github.com/idemkeeper/idemkeeper/internal/tools/tree"
)

// run tries the faults in copies of the tree, with one fault at a time in each copy.
func run(ctx context.Context, chosen []Fault, parallel int, whole bool) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	trees := make([]tree, max(1, min(parallel, len(chosen))))
	for i := range trees {
		trees[i] = tree(filepath.Join(dir, strconv.Itoa(i)))
		if err := copied.Copy(string(trees[i]), "."); err != nil {
			return err
		}
	}
	var r result
	if !whole {
		share(trees, testsOf(chosen), func(t tree, g group) { t.sound(ctx, g, &r) })
	}
	share(trees, chosen, func(t tree, f Fault) {
		began := time.Now()
		verdict, err := t.try(ctx, &f, r.limit(&f), whole)
		switch {
		case ctx.Err() != nil: // nothing is known about this fault
		case err != nil:
			r.failuref("%s: %v", f.Name, err)
		default:
			r.catchf("%s: %s, %.0f s", f.Name, verdict, time.Since(began).Seconds())
		}
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "%d caught, %d failed\n", r.caught, r.failed)
	if r.failed > 0 {
		return errors.New("not every fault is caught")
	}
	return nil
}

// share hands out the items to the trees. Each tree works on one item at a time.
func share[T any](trees []tree, items []T, work func(tree, T)) {
	next := make(chan T)
	var wg sync.WaitGroup
	for _, t := range trees {
		wg.Go(func() {
			for item := range next {
				work(t, item)
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	wg.Wait()
}

// result prints and counts the verdicts in the order in which they come.
type result struct {
	mu             sync.Mutex
	caught, failed int
	usual          map[string]time.Duration // how long a test took without a fault, by package and name
}

// A test may take this long more than five times what it took without a fault. With a fault, many
// tests wait for something that does not happen.
const (
	grace       = 10 * time.Second
	serverGrace = time.Minute
)

// limit is how long the test of a fault may take.
func (r *result) limit(f *Fault) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := 5 * r.usual[f.Package+" "+f.Test]
	if f.Server {
		return serverGrace + took
	}
	return grace + took
}

func (r *result) took(pkg, name string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.usual == nil {
		r.usual = make(map[string]time.Duration)
	}
	r.usual[pkg+" "+name] = d
}

func (r *result) catchf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.caught++
	fmt.Fprintf(os.Stdout, "caught  "+format+"\n", args...)
}

func (r *result) failuref(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed++
	fmt.Fprintf(os.Stdout, "FAILED  "+format+"\n", args...)
}

// group is some tests of a package that run together.
type group struct {
	pkg   string
	names []string
}

// testsOf returns the tests that the faults name. The whole tests of a package run together, and
// each subtest alone.
func testsOf(chosen []Fault) (groups []group) {
	for _, f := range chosen {
		i := slices.IndexFunc(groups, func(g group) bool {
			return g.pkg == f.Package && (g.names[0] == f.Test || !strings.Contains(g.names[0]+f.Test, "/"))
		})
		switch {
		case i < 0:
			groups = append(groups, group{pkg: f.Package, names: []string{f.Test}})
		case !slices.Contains(groups[i].names, f.Test):
			groups[i].names = append(groups[i].names, f.Test)
		}
	}
	return groups
}

// The simulation catches some faults, within so many seeds. It does not make their plans smaller.
const (
	simulation = "./tests/simulate"
	seeds      = "2000" // six in 1,000 notice the rarest of these faults
)

// tree is the directory of a copy.
type tree string

// sound runs tests without any fault. Each of them has to pass.
func (t tree) sound(ctx context.Context, g group, r *result) {
	out, _ := t.test(ctx, g.pkg, strings.Join(g.names, "|"), patience)
	if ctx.Err() != nil {
		return
	}
	for _, name := range g.names {
		passed := regexp.MustCompile(`--- PASS: ` + regexp.QuoteMeta(name) + ` \((\S+s)\)`).FindSubmatch(out)
		if passed == nil {
			r.failuref("%s in %s does not pass without a fault:\n%s", name, g.pkg, tail(out))
			continue
		}
		if d, err := time.ParseDuration(string(passed[1])); err == nil {
			r.took(g.pkg, name, d)
		}
	}
}

// try puts a fault into the copy, runs its test and takes the fault out again. It returns what
// caught the fault.
func (t tree) try(ctx context.Context, f *Fault, limit time.Duration, whole bool) (verdict string, err error) {
	file := filepath.Join(string(t), f.File)
	sound, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	broken, err := f.apply(string(sound))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(file, sound, 0o600)) }()
	name := f.Test
	if whole {
		name, limit = "", patience
	}
	out, ok := t.test(ctx, f.Package, name, limit)
	switch {
	case ok:
		return "", errors.New("nothing notices it")
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return "", fmt.Errorf("it does not compile:\n%s", tail(out))
	case whole:
		return strings.Join(slices.Compact(failures(out)), " "), nil
	case bytes.Contains(out, []byte("panic: test timed out")):
		return f.Test + " does not end", nil
	case bytes.Contains(out, []byte("--- FAIL: "+f.Test)), bytes.Contains(out, []byte("panic: ")), bytes.Contains(out, []byte("fatal error: ")):
		return f.Test, nil
	}
	return "", fmt.Errorf("another failure:\n%s", tail(out))
}

// patience is how long tests may take whose usual time is not known.
const patience = 5 * time.Minute

// test runs tests of a package by their names, or all of them. The paths of the copies are trimmed,
// so that the copies share what they have compiled. If the context ends, the tests are killed too.
func (t tree) test(ctx context.Context, pkg, names string, limit time.Duration) (out []byte, ok bool) {
	args := []string{"test", "-count=1", "-v", "-failfast", "-vet=off", "-trimpath", "-timeout=" + limit.String()}
	if names != "" {
		args = append(args, "-run", "^("+strings.ReplaceAll(names, "/", ")$/^(")+")$")
	}
	args = append(args, pkg)
	if pkg == simulation {
		args = append(args, "-args", "-seeds="+seeds, "-tries=0")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = string(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
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
