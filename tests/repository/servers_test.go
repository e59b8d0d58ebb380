package repository

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// serverNames are the servers of make matrix, as the documents call them.
var serverNames = map[string]string{
	"postgresql": "PostgreSQL", "pgbouncer": "PgBouncer", "mysql": "MySQL", "mariadb": "MariaDB", "mariadb-galera": "MariaDB Galera",
	"redis": "Redis", "valkey": "Valkey", "zookeeper": "ZooKeeper",
}

// The page names the versions that make matrix tries, and no others.
func TestServersThatWereTried(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../scripts/matrix.sh")
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	versions := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t"([a-z-]+)-([0-9.]+)\|`).FindAllStringSubmatch(string(script), -1) {
		name := serverNames[m[1]]
		if len(versions[name]) == 0 {
			tried = append(tried, name)
		}
		versions[name] = append(versions[name], m[2])
	}
	if len(tried) < 7 {
		t.Fatalf("scripts/matrix.sh names %q: the look is broken", tried)
	}
	upgrading := text(t, "../../docs/upgrading.md")
	_, table, _ := strings.Cut(upgrading, "## Servers")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| ([A-Z][A-Za-z ]+) \| ([0-9., ]+) \| [^|]+ \|$`).FindAllStringSubmatch(table, -1)
	if len(rows) != len(tried) {
		t.Errorf("docs/upgrading.md has %d servers, and scripts/matrix.sh %d", len(rows), len(tried))
	}
	for _, row := range rows {
		if want := strings.Join(versions[row[1]], ", "); row[2] != want {
			t.Errorf("docs/upgrading.md: %s %s, and scripts/matrix.sh has %q", row[1], row[2], want)
		}
	}
}

func text(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
