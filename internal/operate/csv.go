package operate

import (
	"strings"
	"unicode/utf8"
)

// CSVLine is one line of CSV (RFC 4180). Each cell is quoted, because programs differ in what they take
// for a separator. A spreadsheet computes none of the cells, whose text comes from services and their clients.
func CSVLine(cells ...string) string {
	var line strings.Builder
	for i, cell := range cells {
		if i > 0 {
			line.WriteByte(',')
		}
		line.WriteString(`"` + strings.ReplaceAll(guard(OneLine(cell)), `"`, `""`) + `"`)
	}
	line.WriteByte('\n')
	return line.String()
}

// formula begins a cell that a spreadsheet may compute. The last four are the wide forms of the
// first four.
const formula = "=+-@\uff1d\uff0b\uff0d\uff20"

// guard keeps a spreadsheet from computing a cell.
func guard(cell string) string {
	if r, _ := utf8.DecodeRuneInString(cell); cell != "" && strings.ContainsRune(formula+"'", r) {
		return "'" + cell
	}
	return cell
}

// UnguardCell returns the text of a cell that [CSVLine] wrote.
func UnguardCell(cell string) string {
	if rest, found := strings.CutPrefix(cell, "'"); found && rest != "" {
		if r, _ := utf8.DecodeRuneInString(rest); strings.ContainsRune(formula+"'", r) {
			return rest
		}
	}
	return cell
}
