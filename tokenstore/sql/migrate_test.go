package sqlstore

import (
	"slices"
	"testing"
)

func TestStatementsOfAFile(t *testing.T) {
	t.Parallel()
	const file = "-- about; this\nCREATE TABLE a (\n\tx int, -- with; a comment\n\ty int\n);\n\nDO $$\nBEGIN\n\tx;\nEND $$;\nCREATE TABLE b (z int);\n"
	block := "DO $$\nBEGIN\n\tx;\nEND $$"
	for comments, first := range map[bool]string{
		false: "CREATE TABLE a (\n\tx int,\n\ty int\n)",
		true:  "CREATE TABLE a (\n\tx int, -- with; a comment\n\ty int\n)",
	} {
		if got, want := splitStatements(file, comments), []string{first, block, "CREATE TABLE b (z int)"}; !slices.Equal(got, want) {
			t.Errorf("splitStatements(%t) = %q, want %q", comments, got, want)
		}
	}
}
