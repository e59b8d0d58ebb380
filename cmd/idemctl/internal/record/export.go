package record

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// exportPage is how many records an export reads in one call. Each may have an answer of a
// megabyte.
const exportPage = 100

// ExportRow is an exported record in JSON.
type ExportRow struct {
	Row
	AttemptID    string `json:"attempt_id"`              // number.nonce.token.domain
	Answered     string `json:"answered,omitempty"`      // the kept answer in a few words
	Resolver     string `json:"resolver,omitempty"`      // who left it in doubt, and why
	AnswerDigest string `json:"answer_digest,omitempty"` // of the kept answer
}

func newExportRow(o *driver.OpenRecord) ExportRow {
	r := &o.Record
	out := ExportRow{Row: newRecordRow(o, false), AttemptID: operate.FormatAttempt(r.Attempt), AnswerDigest: operate.AnswerDigest(r), Answered: answered(r)}
	if out.Resolver = r.Decision.By; r.Decision.Reason != "" {
		out.Resolver += ": " + r.Decision.Reason
	}
	return out
}

// answered tells of the answer that is kept with a record in doubt.
func answered(r *driver.Record) string {
	switch resp := r.Response; {
	case r.ResponseErr != nil:
		return "cannot be read"
	case resp == nil:
		return ""
	case resp.Omitted:
		return fmt.Sprintf("%d, not kept", resp.Status)
	default:
		mediaType := slices.Concat(resp.Header["Content-Type"], resp.Header["content-type"]) // HTTP, gRPC
		text := strings.Join(append([]string{strconv.Itoa(resp.Status)}, mediaType...), " ")
		return text + ", " + strconv.Itoa(len(resp.Body)) + " bytes"
	}
}

// when is a moment of the command line: a time, or so long ago.
func when(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, cli.WrongUse("%s %q is neither a time such as 2026-11-28T14:00:00Z nor a duration such as 90m", flag, text)
	}
	return t, nil
}

// filterFlags select open records.
type filterFlags struct{ state, route, since, until string }

func (f *filterFlags) add(cmd *cobra.Command, state, states string) {
	cmd.Flags().StringVar(&f.state, "state", state, states)
	cmd.Flags().StringVar(&f.route, "route", "", "only this `ROUTE`, by its whole name")
	cmd.Flags().StringVar(&f.since, "since", "", "only attempts that began at `T` or later: 2026-11-28T14:00:00Z, or 90m for 90 minutes ago")
	cmd.Flags().StringVar(&f.until, "until", "", "only attempts that began before `T`")
}

// filter reads the flags. now is for durations.
func (f *filterFlags) filter(now time.Time) (q operate.Filter, err error) {
	q.Route = f.route
	if f.state != "" {
		if q.State, err = driver.ParseState(f.state); err != nil || !q.State.Open() {
			return q, cli.WrongUse("--state %q is neither pending nor unknown", f.state)
		}
	}
	if q.From, err = when("--since", f.since, now); err != nil {
		return q, err
	}
	if q.Until, err = when("--until", f.until, now); err == nil && !q.From.IsZero() && !q.Until.IsZero() && !q.From.Before(q.Until) {
		err = cli.WrongUse("--since is not before --until")
	}
	return q, err
}

func (c *looks) export() *cobra.Command {
	var flags filterFlags
	cmd := &cobra.Command{
		Use:   "export [--state unknown] [--route ROUTE] [--since T] [--until T]",
		Short: "Write open records to a CSV file, to be settled with record decide",
		Long: `Write open records to standard output as CSV, oldest first, or with --json as one
object a line. It reads a page at a time and holds no lock and no transaction, so it
can run while payments do. It writes nothing to the store.

The columns are
  key_id, operation_id   what record show and the log call the key
  attempt, attempt_id    the attempt in doubt; the ID also has its fence and nonce
  route, state           the name of the policy; unknown or pending
  since, started         when the state and the attempt began
  answered               what the handler answered, if it was kept
  resolver               who left it in doubt, and why
  answer_digest          stands for the kept answer
  decision, answer       empty, to be filled in for "record decide"

"decision" is applied, not-applied, or empty to leave the record as it is. "answer"
is for applied: the path of a file with the answer for repeats, as for "record
resolve --applied", relative to the CSV file and below its folder, or kept for the
answer that was kept. Other columns may be added, and lines may be removed and sorted.

Text that a spreadsheet would take for a formula has a ' in front. Unreadable records
are left out, with a message.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record export --route "POST /v1/payments" --since 2026-11-28T14:00:00Z > doubts.csv
  idemctl --redis redis://127.0.0.1:6379 --json record export --since 2h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := flags.filter(time.Now()); err != nil {
				return err
			}
			b, err := c.servers.Open(cmd.Context(), servers.Need{ReadOnly: true})
			if err != nil {
				return err
			}
			defer b.Close()
			now, err := b.Store.Clock(cmd.Context())
			if err != nil {
				return err
			}
			q, err := flags.filter(now)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(c.print.io.Out)
			streams := *c.print.io
			streams.Out = out
			unreadable := 0
			var failed error // of the output
			if !streams.JSON {
				failed = writeCells(out, exportColumns...) // the buffer keeps an error for Flush
			}
			err = q.Each(cmd.Context(), b.Store, exportPage, func(o *driver.OpenRecord) bool {
				if o.Err != nil {
					unreadable++
					return true
				}
				row := newExportRow(o)
				if streams.JSON {
					failed = streams.WriteJSON(row)
				} else {
					failed = writeCells(out, row.cells()...)
				}
				return failed == nil
			})
			if failed == nil {
				failed = out.Flush()
			}
			if failed != nil {
				return fmt.Errorf("the export is not complete: %w", failed)
			}
			if unreadable > 0 {
				c.print.io.Sayf("%d records cannot be read, and were left out; see record list", unreadable)
			}
			if err != nil {
				return fmt.Errorf("the export is not complete: %w", err)
			}
			return nil
		},
	}
	flags.add(cmd, driver.StateUnknown.String(), "unknown or pending, or empty for both")
	return cmd
}
