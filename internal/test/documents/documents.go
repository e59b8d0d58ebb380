// Package documents reads the project's Markdown for the tests that hold it: blocks of
// code, commands, headings and links.
package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Page is a Markdown file.
type Page struct {
	Path string // relative to the root, with slashes
	Text string
}

// Pages returns every Markdown file below the root. Folders of tools, such as .git and bin, and the servers
// of make matrix are left out.
func Pages(root string) (pages []Page, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", ".matrix", "bin", "node_modules"}, d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a page of the project
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		pages = append(pages, Page{filepath.ToSlash(relative), string(text)})
		return err
	})
	return pages, err
}

// Block is a fenced block of code.
type Block struct {
	Language string // what follows the fence; it may be empty
	Code     string
	Line     int    // of the first line of Code, counted from 1
	From     string // the file in the comment <!-- from FILE --> in front of the block
}

var (
	fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	from  = regexp.MustCompile(`<!-- from (\S+) -->\n$`)
)

// Blocks returns the fenced blocks of a page.
func (p Page) Blocks() (blocks []Block) {
	for _, at := range fence.FindAllStringSubmatchIndex(p.Text, -1) {
		b := Block{Language: p.Text[at[2]:at[3]], Code: p.Text[at[4]:at[5]], Line: 1 + strings.Count(p.Text[:at[4]], "\n")}
		if m := from.FindStringSubmatch(p.Text[:at[0]]); m != nil {
			b.From = m[1]
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// prose returns the text without its fenced blocks.
func (p Page) prose() string { return fence.ReplaceAllString(p.Text, "") }

var codeSpan = regexp.MustCompile("`([^`]+)`")

// Spans returns the code within the sentences.
func (p Page) Spans() (spans []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(p.prose(), -1) {
		spans = append(spans, strings.Join(strings.Fields(m[1]), " "))
	}
	return spans
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// Links returns the targets of the links and pictures.
func (p Page) Links() (targets []string) {
	for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(p.prose(), ""), -1) {
		targets = append(targets, m[1])
	}
	return targets
}

var (
	heading  = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	linkText = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
)

// Anchors returns the fragments that lead to the headings, as GitHub makes them: lower case,
// hyphens for spaces, no punctuation, and a number for a heading that occurs again.
func (p Page) Anchors() map[string]bool {
	anchors, seen := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(p.prose(), -1) {
		text := linkText.ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))
		n := seen[name]
		seen[name]++
		if n > 0 {
			name += "-" + strconv.Itoa(n)
		}
		anchors[name] = true
	}
	return anchors
}
