package sqldialect

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	textType   = regexp.MustCompile(`\{text (\d+)\}`)
	tableName  = regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS (\S+) \($`)
	indexLines = regexp.MustCompile(`(?m)^\s*INDEX (\S+) (\(.*\)),\n`)
)

// Tables returns the statements that make the tables of a text, unless they are there. Programs that run them in
// one transaction begin with those of Alone. In the text
//
//	{text 64}    is the type of a text of at most so many bytes, which is compared byte by byte
//	{long text}  is that of a longer one
//	{serial}     is that of an ascending primary key, and says so
//	{engine}     ends a table
//
// A line of a table that begins with INDEX makes an index. It is not the last line of its table, because it
// is a statement after it on databases that want one. A semicolon at the end of a line ends a statement.
func (d *Dialect) Tables(text string) (list []string) {
	text = strings.NewReplacer("{long text}", d.longText, "{serial}", d.serial, "{engine}", d.engine).Replace(text)
	text = textType.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.Atoi(textType.FindStringSubmatch(m)[1]) // digits
		return d.text(n)
	})
	for s := range strings.SplitSeq(text, ";\n") {
		if strings.TrimSpace(s) == "" {
			continue
		}
		table := tableName.FindStringSubmatch(s)
		if d.indexIn || table == nil {
			list = append(list, s)
			continue
		}
		list = append(list, indexLines.ReplaceAllString(s, ""))
		for _, index := range indexLines.FindAllStringSubmatch(s, -1) {
			list = append(list, fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s %s", index[1], table[1], index[2]))
		}
	}
	return list
}

// Alone returns the statements at the begin of a transaction that makes tables. They let one at a time go on of
// those that have the same number. Programs that share a database share its numbers.
func (d *Dialect) Alone(number int64) []string {
	if d.tableLock == "" {
		return nil
	}
	return []string{fmt.Sprintf(d.tableLock, number)}
}
