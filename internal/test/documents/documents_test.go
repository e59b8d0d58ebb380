package documents

import (
	"maps"
	"reflect"
	"slices"
	"testing"
)

const page = "# A *page*: of `code`, and more\n" +
	"[one](#two) `[no](link)` ![picture](a.png) [out](https://example.com)\n" +
	"## Two\n<!-- from ../a/b.go -->\n```go\n# no heading\n[no](link)\n```\n" +
	"```\nplain\n```\n## Two\nA `make\n  test`. [See *that*](x/y.md#z)\n"

func TestPage(t *testing.T) {
	p := Page{"page.md", page}
	if got, want := p.Blocks(), []Block{{"go", "# no heading\n[no](link)\n", 6, "../a/b.go"}, {"", "plain\n", 10, ""}}; !slices.Equal(got, want) {
		t.Errorf("Blocks() = %+v, want %+v", got, want)
	}
	if got, want := p.Links(), []string{"#two", "a.png", "https://example.com", "x/y.md#z"}; !slices.Equal(got, want) {
		t.Errorf("Links() = %q, want %q", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(p.Anchors())), []string{"a-page-of-code-and-more", "two", "two-1"}; !slices.Equal(got, want) {
		t.Errorf("Anchors() = %q, want %q", got, want)
	}
	if got, want := p.Spans(), []string{"code", "[no](link)", "make test"}; !slices.Equal(got, want) {
		t.Errorf("Spans() = %q, want %q", got, want)
	}
}

func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   []Command
	}{
		{"# 201: pays\ncurl -H 'A: b c' \\\n  -d '{\"a\":1}' \"http://h/$X\" # or not\n", []Command{{[]string{"curl", "-H", "A: b c", "-d", `{"a":1}`, "http://h/$X"}, "201: pays"}}},
		{"A=1 b 2>&1 | c > d x && e\n", []Command{{[]string{"b"}, ""}, {[]string{"c", "x"}, ""}, {[]string{"e"}, ""}}},
		{"T=$(idemctl token) f a\"$(hostname -s)\"'q'\n", []Command{{[]string{"f", "a$(hostname -s)q"}, ""}}},
		{"# lost\n\na#b &\n", []Command{{[]string{"a#b"}, ""}}},
	} {
		if got, err := Commands(tt.script); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("Commands(%q) = %q, %v, want %q", tt.script, got, err, tt.want)
		}
	}
	if got, err := Commands("a `b`\n"); err == nil {
		t.Errorf("Commands with backticks = %q, want an error", got)
	}
}
