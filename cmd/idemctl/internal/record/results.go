package record

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// resultColumns are the columns of a result file.
var resultColumns = []string{"line", "key_id", "attempt_id", "decision", "answer", "result", "detail", "by", "at", "decision_id"}

// resultFile has a line for each result of the lines of a sheet. Only one process at a time writes it.
// Each line is one write, so a process that dies leaves at most a part of its last line, and the
// next one cuts that off.
type resultFile struct {
	f    *os.File
	done map[string]bool // the decision_id of lines whose decision stands
	size int64           // of the whole lines
	torn error           // why the file ends with a part of a line; nothing is written after it
}

// openResults opens or makes a result file and locks it.
func openResults(path string) (_ *resultFile, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, cli.UsageError{Err: err}
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cli.UsageError{Err: fmt.Errorf("%s is not a regular file", path)}
	}
	if err := lockFile(f); err != nil {
		return nil, fmt.Errorf("%s is locked, probably by another run: %w", path, err)
	}
	r := &resultFile{f: f, done: map[string]bool{}}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if err := r.read(data); err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("%s: %w", path, err)}
	}
	if err := r.cutOff(); err != nil {
		return nil, err
	}
	if r.size == 0 {
		err = r.write(resultColumns)
	}
	return r, err
}

// read takes the results of earlier runs. A later result of a line replaces an earlier one.
func (r *resultFile) read(data []byte) error {
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	r.size = int64(len(whole))
	if len(whole) == 0 {
		if len(data) > 0 && !bytes.HasPrefix([]byte(operate.CSVLine(resultColumns...)), data) {
			return errors.New("it is no result file of record decide")
		}
		return nil
	}
	rows := csv.NewReader(bytes.NewReader(whole))
	header, err := rows.Read()
	if err != nil || !slices.Equal(header, resultColumns) {
		return errors.New("it is no result file of record decide")
	}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is damaged: %w", err)
		}
		r.done[row[len(row)-1]] = operate.Outcome(row[slices.Index(resultColumns, "result")]).Done()
	}
}

// cutOff removes a line that was written in part.
func (r *resultFile) cutOff() error {
	if err := r.f.Truncate(r.size); err != nil {
		return err
	}
	_, err := r.f.Seek(r.size, io.SeekStart)
	return err
}

// add writes the result of a line.
func (r *resultFile) add(l *line, result *operate.Result, by string, at time.Time) error {
	return r.write([]string{strconv.Itoa(l.number), l.doubt.ID.String(), operate.FormatAttempt(l.doubt.Attempt), l.decision, l.answer,
		string(result.Outcome), detailOf(result), by, at.UTC().Format(time.RFC3339), l.id()})
}

func (r *resultFile) write(cells []string) error {
	if r.torn != nil {
		return r.torn
	}
	text := operate.CSVLine(cells...)
	n, err := r.f.WriteString(text)
	if err == nil {
		r.size += int64(n)
		return nil
	}
	if cut := r.cutOff(); cut != nil { // a disk that is full lets a file become shorter
		err = fmt.Errorf("%w, and its last line stays cut off: %w", err, cut)
		r.torn = err
	}
	return err
}

// Close makes the results durable.
func (r *resultFile) Close() error {
	err := r.f.Sync()
	return errors.Join(err, r.f.Close())
}

// detailOf is what a result has to tell beside its outcome, in one line.
func detailOf(result *operate.Result) string {
	if result.Err != nil {
		return cli.OneLine(result.Err)
	}
	return result.Detail
}
