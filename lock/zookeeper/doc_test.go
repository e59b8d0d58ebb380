package zookeeper

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The list in doc.go that explains the plain lock stays short, and none of its files is about
// markers, recipes or queues.
func TestReadingList(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(doc), "// # To see why the plain lock is safe\n")
	if !ok {
		t.Fatal("doc.go has no list")
	}
	const maxFiles, maxLines = 16, 2200
	files, lines := 0, 0
	for _, item := range regexp.MustCompile(`(?m)^//   - (\S+\.go) `).FindAllStringSubmatch(list, -1) {
		source, err := os.ReadFile(item[1])
		if err != nil {
			t.Error(err)
		}
		files++
		lines += bytes.Count(source, []byte("\n"))
		if strings.Contains(item[1], "marker") || bytes.Contains(source, []byte("func (l *Lease) Mark")) {
			t.Errorf("%s is about markers", item[1])
		}
	}
	t.Logf("%d lines in %d files", lines, files)
	if files < 10 || files > maxFiles || lines > maxLines {
		t.Errorf("the list has %d lines in %d files, want %d in %d at most", lines, files, maxLines, maxFiles)
	}
}
