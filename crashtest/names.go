package crashtest

import (
	"regexp"
	"strings"
)

// Names of points have to be the same in each run, so what looks like an identifier is left out.
var identifiers = regexp.MustCompile(`crashtest-[0-9a-z]+|[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*`)

const longestName = 48

// stableName leaves out of a path what is longer than a version and has a digit, and the key.
func stableName(path string) string {
	return identifiers.ReplaceAllStringFunc(path, func(word string) string {
		if len(word) < 5 && !strings.HasPrefix(word, "crashtest-") {
			return word
		}
		return "*"
	})
}

var (
	sqlComments = regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`)
	sqlWrites   = regexp.MustCompile("(?is)\\b(INSERT\\s+INTO|UPDATE|DELETE\\s+FROM)\\s+([\\w.\"`]+)")
	sqlReads    = regexp.MustCompile("(?is)\\b(SELECT)\\b.*?\\bFROM\\s+([\\w.\"`]+)")
	sqlNamed    = regexp.MustCompile(`(?i)^\s*(WITH|INSERT|UPDATE|DELETE|SELECT)\b`)
)

// StatementName is the name of an SQL statement as a point: its verb and its table.
func StatementName(statement string) string {
	statement = strings.TrimSpace(sqlComments.ReplaceAllString(statement, " "))
	first := strings.ToUpper(sqlNamed.FindString(statement))
	for i, form := range []*regexp.Regexp{sqlWrites, sqlReads} {
		m := form.FindStringSubmatch(statement)
		if m == nil || first == "" || i == 0 && strings.Contains(first, "SELECT") { // FOR UPDATE is no write
			continue
		}
		verb := strings.ToUpper(strings.Join(strings.Fields(m[1]), " "))
		if verb == "SELECT" {
			verb = "SELECT FROM"
		}
		return verb + " " + strings.NewReplacer(`"`, "", "`", "").Replace(m[2])
	}
	verb, rest, _ := strings.Cut(shorten(strings.TrimRight(statement, "; \t\n"), longestName), " ")
	return strings.TrimSpace(strings.ToUpper(verb) + " " + stableName(rest))
}
