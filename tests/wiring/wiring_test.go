package wiring

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// fault is a mistake, and what has to be said about it.
type fault struct {
	name string
	// made makes the mistake, and returns what is said beside the log.
	made func(t *testing.T) string
	// named and next are words of what is said: they name the fault, and the next step.
	named, next string
}

// TestEveryFaultIsTold has a case for each mistake that was once answered with nothing, too late, or without the next step.
func TestEveryFaultIsTold(t *testing.T) {
	for _, f := range append(atTheStart, atARequest...) {
		t.Run(f.name, func(t *testing.T) {
			log := defaultLog(t)
			answer := f.made(t)
			said := ""
			kit.Eventually(t, "word of what is wrong", func() error { // a slow machine logs after the answer
				said = answer + "\n" + log.String()
				for what, want := range map[string]string{"fault": f.named, "next step": f.next} {
					if !regexp.MustCompile(want).MatchString(said) {
						return fmt.Errorf("the %s is missing: want %q in\n%s", what, want, said)
					}
				}
				return nil
			})
			for _, link := range regexp.MustCompile(`(docs/[a-z]+\.md)(?:#([a-z-]+))?`).FindAllStringSubmatch(said, -1) {
				if !strings.HasSuffix(f.name, "nobody can notice") && !hasHeading(page(t, link[1]), link[2]) {
					t.Errorf("%s is not there", link[0])
				}
			}
		})
	}
}

// buffer is a log.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.ReplaceAll(b.text.String(), `\"`, `"`)
}

// defaultLog catches what the default logger writes. So the faults are made one after the other.
func defaultLog(t *testing.T) *buffer {
	t.Helper()
	log, before := new(buffer), slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log
}

// text is what an error says.
func text(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// closing ends something after a test.
func closing(t *testing.T, end func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() { _ = end(context.Background()) })
}

// page is a document of the repository.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// hasHeading reports whether a document has a heading of one word.
func hasHeading(text, heading string) bool {
	return heading == "" || strings.Contains(strings.ToLower(text), "## "+heading+" ")
}
