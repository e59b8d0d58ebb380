package main

import (
	"io"
	"regexp"
	"strings"
	"sync"
)

// lockedWriter is for runs beside each other. Each Write is a piece of their output.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lockedWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(text)
}

// problem prints a headline and remembers it for the end.
func (s *summary) problem(headline string) {
	s.problems = append(s.problems, headline)
	s.print(headline + "\n")
}

func (s *summary) print(text string) { _, _ = io.WriteString(s.out, text) }

func (s *summary) count(pkg string) *packageCount {
	if s.counts[pkg] == nil {
		s.counts[pkg] = &packageCount{}
	}
	return s.counts[pkg]
}

// saidSoFar reports whether a test has printed text.
func (s *summary) saidSoFar(key testKey, text string) bool {
	b := s.output[key]
	return b != nil && strings.Contains(b.String(), text)
}

// take returns and forgets what a test printed.
func (s *summary) take(key testKey) string {
	return takeFrom(s.output, key)
}

// takeBuild returns and forgets what the compiler printed for a package. It
// returns it once, though several packages may have needed that build.
func (s *summary) takeBuild(path string) string {
	return takeFrom(s.builds, path)
}

func appendTo[K comparable](m map[K]*strings.Builder, key K, text string) {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	m[key].WriteString(text)
}

func takeFrom[K comparable](m map[K]*strings.Builder, key K) string {
	b := m[key]
	delete(m, key)
	if b == nil {
		return ""
	}
	return b.String()
}

// withoutProgress leaves out what go test says about a test's course.
func withoutProgress(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "=== ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// message matches the first line of what a test says with t.Error or t.Log.
var message = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: .*`)

// firstMessages are for the end of the run, where a reader looks first. A system that keeps
// only the end of a long output shows them, too.
func firstMessages(text string) string {
	const limit, width = 5, 300
	var b strings.Builder
	for _, line := range message.FindAllString(text, limit) {
		b.WriteString("\n" + line[:min(len(line), width)])
	}
	return b.String()
}
