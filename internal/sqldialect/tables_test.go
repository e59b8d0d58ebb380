package sqldialect

import (
	"slices"
	"testing"
)

// One text makes the tables of every database, with their indexes.
func TestTables(t *testing.T) {
	t.Parallel()
	const text = "-- about\nCREATE TABLE IF NOT EXISTS t (\n\tseq {serial},\n\tid {text 64} NOT NULL,\n\tINDEX t_id (id, seq),\n\tnote {long text}\n){engine};\n\n"
	index := "CREATE INDEX IF NOT EXISTS t_id ON t (id, seq)"
	for d, want := range map[*Dialect][]string{
		postgres: {"-- about\nCREATE TABLE IF NOT EXISTS t (\n\tseq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n\tid TEXT NOT NULL,\n\tnote TEXT\n)", index},
		mysql: {"-- about\nCREATE TABLE IF NOT EXISTS t (\n\tseq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,\n\tid VARBINARY(64) NOT NULL,\n" +
			"\tINDEX t_id (id, seq),\n\tnote MEDIUMBLOB\n) ENGINE = InnoDB"},
		sqlite: {"-- about\nCREATE TABLE IF NOT EXISTS t (\n\tseq INTEGER PRIMARY KEY AUTOINCREMENT,\n\tid TEXT NOT NULL,\n\tnote TEXT\n)", index},
	} {
		if got := d.Tables(text); !slices.Equal(got, want) {
			t.Errorf("%s: Tables() = %q, want %q", d.Name, got, want)
		}
	}
}
