package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sample copies testdata/sample to a module of its own.
func sample(t *testing.T) options {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/sample")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module sample\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return options{root: root, pkg: ".", tests: []string{"."}, names: ".", quick: true, of: 1, grace: 2 * time.Second}
}

// verdicts are those of all changes of the sample. Its tests notice the changes without a word
// in front.
const verdicts = `
sample.go:17: condition true: points > limit && (extra || points == 100)
sample.go:17: condition false: points > limit && (extra || points == 100)	survived
sample.go:19: condition true: points > limit
sample.go:19: condition false: points > limit
sample.go:17: condition true: points > limit	survived
sample.go:17: condition true: (extra || points == 100)
sample.go:17: limit: points > limit	survived
sample.go:17: condition false: extra	survived
sample.go:17: condition false: points == 100	survived
sample.go:19: limit: points > limit	survived
sample.go:29: left out: *balance -= amount
sample.go:29: sum: *balance -= amount
sample.go:26: condition true: *balance < amount
sample.go:26: condition false: *balance < amount
sample.go:26: limit: *balance < amount
sample.go:27: no error: return errSmall
sample.go:33: no error: return *balance, withdraw(balance, amount)	survived
sample.go:35: no error: return both(balance, *balance)	survived
sample.go:37: negated: a == b
sample.go:42: sum: d + 2*by - time.Duration(1<<3)
sample.go:42: difference: d + 2*by	survived
sample.go:45: condition true: n < to
sample.go:45: condition false: n < to
sample.go:45: limit: n < to
sample.go:46: left out: n++
sample.go:46: difference: n++
sample.go:52: left out: go close(done)
sample.go:53: left out: <-done	survived
sample.go:57: condition true: !ok	unreached
sample.go:57: condition false: !ok	unreached
`

func TestEachChangeAndItsVerdict(t *testing.T) {
	t.Parallel()
	o := sample(t)
	var want strings.Builder
	for line := range strings.Lines(strings.TrimSpace(verdicts)) {
		if change, verdict, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			want.WriteString(verdict + "  " + change + "\n")
		}
	}
	var got strings.Builder
	o.list = true
	if err := run(t.Context(), &got, o); err != nil {
		t.Fatal(err)
	}
	list, figure, _ := strings.Cut(got.String(), "FIGURE ")
	if list != want.String() || !strings.HasPrefix(figure, "changes . made 30 noticed 18 late 3 survived 10 unreached 2") {
		t.Errorf("run() prints\n%s\nwant\n%s", got.String(), want.String())
	}
}

// What is written compiles, and each change stands in the table above.
func TestRewrite(t *testing.T) {
	t.Parallel()
	o := sample(t)
	s, err := load(t.Context(), o.root, o.pkg)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.rewrite()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(strings.TrimSpace(verdicts)) {
		change, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		want = append(want, change)
	}
	for i, c := range all {
		if i >= len(want) || c.String() != want[i] || c.number != i+1 {
			t.Errorf("change %d of %d is number %d, %s; want the line of the table", i+1, len(want), c.number, c)
		}
	}
	if _, err := command(t.Context(), o.root, "vet", "."); err != nil {
		t.Error(err)
	}
}

func TestChosenChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		only     string
		part, of int
		names    string
		want     string
	}{
		{"left out: <-done", 0, 1, ".", "made 1 noticed 0 late 0 survived 1 unreached 0"},
		{"sample.go:46", 0, 1, "Balance|Count", "made 2 noticed 2 late 2 survived 0 unreached 0"},
		{"sample.go:46", 0, 1, "Balance", "made 2 noticed 0 late 0 survived 0 unreached 2"},
		{"sample.go:57", 3, 2, ".", "made 1 noticed 0 late 0 survived 0 unreached 1"},
	} {
		o := sample(t)
		o.only, o.part, o.of, o.names = tt.only, tt.part, tt.of, tt.names
		var got strings.Builder
		if err := run(t.Context(), &got, o); err != nil || got.String() != "FIGURE changes . "+tt.want+"\n" {
			t.Errorf("run(only %q, part %d/%d) = %v and prints %s, want %s", tt.only, tt.part, tt.of, err, got.String(), tt.want)
		}
	}
}

// An interrupt while tests run leaves no directory.
func TestInterrupted(t *testing.T) {
	tmp := t.TempDir()
	o := sample(t)
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if runs, _ := filepath.Glob(tmp + "/changes*/*/record"); len(runs) > 0 {
				cancel(interrupted)
			}
			<-tick.C
		}
	}()
	if err := run(ctx, &strings.Builder{}, o); !errors.Is(err, context.Canceled) && !errors.Is(err, interrupted) {
		t.Errorf("run() = %v, want that it was interrupted", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// The fastest tests run first, and each round takes up to twice as long as the one before.
func TestBatches(t *testing.T) {
	t.Parallel()
	a, b := &binary{pkg: "a"}, &binary{pkg: "b"}
	var tests []*test
	for i, ms := range []int{300, 300, 300, 300, 1500, 9000} {
		tests = append(tests, &test{binary: []*binary{a, b}[i%2], name: strconv.Itoa(i), took: time.Duration(ms) * time.Millisecond})
	}
	var got []string
	for _, group := range batches(tests) {
		var names []string
		for _, one := range group {
			names = append(names, one.pkg+one.name)
		}
		got = append(got, strings.Join(names, "+"))
	}
	if want := "a0+a2 b1 b3 a4 b5"; strings.Join(got, " ") != want {
		t.Errorf("batches() = %q, want %s", got, want)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-quick", "-tests", "./a,./b", "-part", "5/3", "./idem"})
	if err != nil || !o.quick || o.names != "." || o.pkg != "./idem" || strings.Join(o.tests, " ") != "./idem ./a ./b" || o.part != 5 || o.of != 3 {
		t.Errorf("parse() = %+v, %v", o, err)
	}
	for _, args := range [][]string{nil, {"./a", "./b"}, {"-part", "1/0", "./a"}, {"-part", "x", "./a"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("parse(%q) = <nil>, want an error", args)
		}
	}
}
