package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// event is one line of go test -json. See go doc test2json and go help
// buildjson.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// testKey names a test. The empty test is the package itself.
type testKey struct{ pkg, test string }

// summary counts events and prints them for a reader.
type summary struct {
	out            io.Writer
	quick          bool // tests that need a server are left out
	passed, failed int
	leftOut        int
	notRun         map[string]int               // tests by the reason why they cannot run here
	output         map[testKey]*strings.Builder // of what runs
	running        map[string]map[string]bool   // tests by package
	counts         map[string]*packageCount
	builds         map[string]*strings.Builder // compiler output by import path
	problems       []string
}

type packageCount struct{ passed, failed, leftOut int }

// needsServer is the reason with which testserver skips a test under -short.
const needsServer = "needs a server, left out under -short"

// notRunHere begins the reason with which testserver skips a test whose server this machine
// cannot have. The rest of the line names the server.
const notRunHere = "not run here: "

func newSummary(out io.Writer) *summary {
	return &summary{
		out:     out,
		notRun:  make(map[string]int),
		output:  make(map[testKey]*strings.Builder),
		running: make(map[string]map[string]bool),
		counts:  make(map[string]*packageCount),
		builds:  make(map[string]*strings.Builder),
	}
}

// read takes the whole output of go test -json. Lines that are no events are
// passed through, because the go command prints some.
func (s *summary) read(r io.Reader) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				s.add(e)
			} else {
				s.print(line)
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *summary) add(e event) {
	key := testKey{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		appendTo(s.builds, e.ImportPath, e.Output)
	case "build-fail":
		// Told by the fail event of each package that needed this build.
	case "output":
		appendTo(s.output, key, e.Output)
	case "start":
		s.count(e.Package)
	case "run":
		if s.running[e.Package] == nil {
			s.running[e.Package] = make(map[string]bool)
		}
		s.running[e.Package][e.Test] = true
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(key, e.Action)
		}
	}
}

// endTest counts a test as passed, failed, skipped or never ended.
func (s *summary) endTest(key testKey, action string) {
	delete(s.running[key.pkg], key.test)
	count := s.count(key.pkg)
	switch {
	case action == "pass":
		s.passed++
		count.passed++
	case action == "skip" && s.quick && s.saidSoFar(key, needsServer):
		s.leftOut++
		count.leftOut++
	case action == "skip" && s.saidSoFar(key, notRunHere):
		_, reason, _ := strings.Cut(s.take(key), notRunHere)
		reason, _, _ = strings.Cut(reason, "\n")
		s.notRun[reason]++
	default:
		s.failed++
		count.failed++
		what := map[string]string{"fail": "FAIL", "skip": "SKIPPED, which counts as failed", "run": "NEVER ENDED"}[action]
		text := withoutProgress(s.take(key))
		headline := fmt.Sprintf("%s: %s %s", what, key.pkg, key.test)
		s.print(headline + "\n" + text)
		s.problems = append(s.problems, headline+firstMessages(text))
	}
	delete(s.output, key)
}

// endPackage prints the package's line and finds failures outside of its tests.
func (s *summary) endPackage(e event) {
	key := testKey{e.Package, ""}
	for _, name := range slices.Sorted(maps.Keys(s.running[e.Package])) {
		s.endTest(testKey{e.Package, name}, "run")
	}
	count := s.count(e.Package)
	text := s.take(key)
	switch e.Action {
	case "skip":
		s.print(fmt.Sprintf("?    %s [no test files]\n", e.Package))
	case "pass":
		s.print(fmt.Sprintf("ok   %s %.1fs, %s\n", e.Package, e.Elapsed, s.figures(*count)))
	default:
		if count.failed == 0 {
			s.failed++
			count.failed++
			s.problem("FAIL: " + e.Package + " (the package itself)")
		}
		s.print(s.takeBuild(e.FailedBuild) + text + fmt.Sprintf("FAIL %s %.1fs, %s\n", e.Package, e.Elapsed, s.figures(*count)))
	}
	delete(s.counts, e.Package)
	delete(s.running, e.Package)
}

// endRun closes the open tests of one go test. exit is its exit status. Status 1 can mean
// failed tests or another failure, so failed is the number of failed tests until here.
func (s *summary) endRun(exit error, failed int) {
	open := slices.Sorted(maps.Keys(s.counts))
	for _, pkg := range open {
		s.endPackage(event{Action: "fail", Package: pkg})
	}
	for _, path := range slices.Sorted(maps.Keys(s.builds)) {
		s.print(s.takeBuild(path))
	}
	var status *exec.ExitError
	told := failed+len(open) > 0
	if exit != nil && (!told || !errors.As(exit, &status) || status.ExitCode() != 1) {
		s.failed++
		s.problem(fmt.Sprintf("FAIL: go test: %v", exit))
	}
}

// join adds the results of other runs.
func (s *summary) join(others *summary) {
	s.passed += others.passed
	s.failed += others.failed
	s.leftOut += others.leftOut
	for reason, n := range others.notRun {
		s.notRun[reason] += n
	}
	s.problems = append(s.problems, others.problems...)
}

// finish prints what was not run, the problems once more, and then the line that counts.
func (s *summary) finish() {
	if s.passed+s.failed == 0 {
		s.problem("no test ran")
	}
	if len(s.problems)+len(s.notRun) > 0 {
		s.print("\n")
	}
	for _, reason := range slices.Sorted(maps.Keys(s.notRun)) {
		s.print(fmt.Sprintf("NOT RUN: %d, %s\n", s.notRun[reason], reason))
	}
	for _, p := range s.problems {
		s.print(p + "\n")
	}
	s.print(s.figures(packageCount{passed: s.passed, failed: s.failed, leftOut: s.leftOut}) + "\n")
}

func (s *summary) figures(c packageCount) string {
	text := fmt.Sprintf("%d passed, %d failed", c.passed, c.failed)
	if s.quick {
		text += fmt.Sprintf(", %d left out", c.leftOut)
	}
	return text
}

func (s *summary) ok() bool { return s.failed == 0 && s.passed > 0 }
