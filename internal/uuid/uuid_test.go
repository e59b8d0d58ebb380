package uuid_test

import (
	"regexp"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

func TestNewIsRandomVersion4(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	for range 1000 {
		u := uuid.New()
		if !form.MatchString(u) || seen[u] {
			t.Fatalf("New() = %q, want a new UUID of version 4", u)
		}
		seen[u] = true
	}
}

func TestParseReadsTextsInTheirOneForm(t *testing.T) {
	t.Parallel()
	for range 1000 {
		text := uuid.New()
		if u, ok := uuid.Parse(text); !ok || uuid.Text(u) != text {
			t.Fatalf("Text(Parse(%q)) = %q, %v, want the same text", text, uuid.Text(u), ok)
		}
	}
	for _, text := range []string{
		"", "f47ac10b-58cc-4372-a567-0e02b2c3d47", "f47ac10b-58cc-4372-a567-0e02b2c3d4790",
		"F47ac10b-58cc-4372-a567-0e02b2c3d479", "f47ac10b-58cc-4372-a567-0e02b2c3d47g",
		"f47ac10b058cc04372-a567-0e02b2c3d479", "f47ac10-b58cc-4372-a567-0e02b2c3d479",
	} {
		if u, ok := uuid.Parse(text); ok {
			t.Errorf("Parse(%q) = %x, want no UUID", text, u)
		}
	}
}
