package sqlstore

import (
	"slices"
	"testing"
)

func TestStatementsForDialects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names names
		want  string
	}{
		{names{dialect: postgres, schema: "", prefix: "idem_"}, `SELECT kind FROM "idem_records" WHERE k = $1 AND "idem_x" = $2 ON CONFLICT DO NOTHING`},
		{names{dialect: postgres, schema: "pay", prefix: "p_"}, `SELECT kind FROM "pay"."p_records" WHERE k = $1 AND "p_x" = $2 ON CONFLICT DO NOTHING`},
		{names{dialect: mysql, schema: "pay", prefix: "p_"}, "SELECT kind FROM `pay`.`p_records` WHERE k = ? AND `p_x` = ? "},
		{names{dialect: sqlite, schema: "", prefix: "p_"}, `SELECT kind FROM "p_records" WHERE k = ? AND "p_x" = ? ON CONFLICT DO NOTHING`},
	} {
		if got := tt.names.sql("SELECT kind FROM {records} WHERE k = ? AND {name:x} = ? {once}"); got != tt.want {
			t.Errorf("%+v: sql() = %s, want %s", tt.names, got, tt.want)
		}
	}
}

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
