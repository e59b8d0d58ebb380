package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// The columns of an export. A sheet needs those of sheetColumns.
var (
	exportColumns = []string{"key_id", "attempt", "operation_id", "route", "state", "since", "started", "answered", "resolver", "attempt_id", "answer_digest", "decision", "answer"}
	sheetColumns  = []string{"key_id", "attempt_id", "operation_id", "route", "answer_digest", "decision", "answer"}
)

// Values of the columns decision and answer.
const (
	sayApplied    = "applied"
	sayNotApplied = "not-applied"
	answerKept    = "kept"
)

// mostLines bounds a sheet, because all of its lines are checked before the first is used.
const mostLines = 1_000_000

func (r *ExportRow) cells() []string {
	stamp := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	return []string{r.KeyID, strconv.FormatUint(uint64(r.Attempt), 10), r.OperationID, r.Route, r.State, stamp(r.Since), stamp(r.Started),
		r.Answered, r.Resolver, r.AttemptID, r.AnswerDigest, "", ""}
}

// writeCells writes one line of CSV.
func writeCells(w io.Writer, cells ...string) error {
	_, err := io.WriteString(w, operate.CSVLine(cells...))
	return err
}

// line is one line of a sheet.
type line struct {
	number   int // in the file, from 1
	doubt    operate.Doubt
	decision string // sayApplied, sayNotApplied, or "" to leave the record
	answer   string // answerKept or a path, with sayApplied
	content  string // stands for the content of the file at that path
}

// id stands for what the line says. A result of an earlier run counts for the same line only.
func (l *line) id() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{l.doubt.ID.String(), operate.FormatAttempt(l.doubt.Attempt), l.decision, l.answer, l.doubt.Digest, l.content}, "\x00")))
	return "d_" + hex.EncodeToString(sum[:16])
}

// lineError says what is wrong with a line.
type lineError struct {
	line int
	err  error
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e lineError) Unwrap() error { return e.err }

// readSheet reads a sheet. wrong has an error for each malformed line.
func readSheet(data []byte) (lines []*line, wrong []error, err error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // spreadsheets write it
	if !utf8.Valid(data) {
		return nil, nil, errors.New("it is not UTF-8; save it as CSV in UTF-8")
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	r := csv.NewReader(bytes.NewReader(data))
	for _, separator := range ";\t" { // of a spreadsheet in another language
		if bytes.ContainsRune(first, separator) && !bytes.Contains(first, []byte(",")) {
			r.Comma = separator
		}
	}
	header, err := r.Read()
	if err != nil {
		return nil, nil, fmt.Errorf("it has no line with the names of the columns: %w", err)
	}
	column := map[string]int{}
	for i, name := range header {
		name = strings.TrimSpace(name)
		if _, twice := column[name]; twice && slices.Contains(sheetColumns, name) {
			return nil, nil, fmt.Errorf("it has the column %s twice", name)
		}
		column[name] = i
	}
	for _, name := range sheetColumns {
		if _, there := column[name]; !there {
			return nil, nil, fmt.Errorf("it has no column %s; export it anew, and keep the columns", name)
		}
	}
	seen := map[driver.KeyID]int{}
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			return lines, wrong, nil
		}
		if bad, ok := errors.AsType[*csv.ParseError](err); ok && !errors.Is(err, csv.ErrFieldCount) {
			return nil, nil, fmt.Errorf("line %d: %w", bad.Line, bad.Err) // what follows cannot be told apart
		}
		number, _ := r.FieldPos(0)
		if len(lines)+len(wrong) == mostLines {
			return nil, nil, fmt.Errorf("it has more than %d lines; split it", mostLines)
		}
		if !slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) != "" }) {
			continue
		}
		if err != nil { // too few or too many cells
			wrong = append(wrong, lineError{number, fmt.Errorf("it has %d cells, and the first line has %d", len(cells), len(header))})
			continue
		}
		l, err := readLine(func(name string) string { return operate.UnguardCell(strings.TrimSpace(cells[column[name]])) })
		if l != nil {
			l.number = number
			if before, twice := seen[l.doubt.ID]; twice {
				err = fmt.Errorf("the key is in line %d too", before)
			}
			seen[l.doubt.ID] = number
		}
		if err != nil {
			wrong = append(wrong, lineError{number, err})
			continue
		}
		lines = append(lines, l)
	}
}

// readLine reads the cells of a line. l is nil if its key ID cannot be read.
func readLine(cell func(column string) string) (l *line, err error) {
	l = &line{decision: cell("decision"), answer: cell("answer")}
	if l.doubt.ID, err = driver.ParseKeyID(cell("key_id")); err != nil {
		return nil, fmt.Errorf("key_id: %w", err)
	}
	if op := cell("operation_id"); op != l.doubt.ID.OperationID() {
		return l, fmt.Errorf("operation_id %s is not that of the key_id; was only a part of the columns sorted?", operate.OneLine(op))
	}
	if l.doubt.Attempt, err = operate.ParseAttempt(cell("attempt_id")); err != nil {
		return l, fmt.Errorf("attempt_id: %w", err)
	}
	l.doubt.Route, l.doubt.Digest = cell("route"), cell("answer_digest")
	switch l.decision {
	case sayApplied, sayNotApplied, "":
	default:
		return l, fmt.Errorf("decision %q is neither %s nor %s nor empty", l.decision, sayApplied, sayNotApplied)
	}
	switch {
	case l.decision != sayApplied && l.answer != "":
		return l, fmt.Errorf("it has an answer, and the decision is not %s", sayApplied)
	case l.decision == sayApplied && l.answer == "":
		return l, errors.New("applied without an answer: name a file, or kept")
	case l.answer == answerKept && l.doubt.Digest == "":
		return l, errors.New("the answer is to be the kept one, and none was kept")
	}
	return l, nil
}
