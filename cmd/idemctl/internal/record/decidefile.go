package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/answer"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

const (
	// defaultRate leaves the servers room for payments.
	defaultRate = 200
	// mostSheet bounds a sheet, in bytes.
	mostSheet = 1 << 30
	// mostTold bounds the lines of standard error about single lines of a sheet.
	mostTold = 20
	// looked is how many keys are looked up to notice a sheet of another store.
	looked = 100
)

// fileRun is one run of record decide.
type fileRun struct {
	*decisions

	verdict
	from, results string
	dryRun        bool
	rate          float64

	lines   []*line // with a decision that does not stand yet
	left    int     // lines without a decision
	earlier int     // lines whose decision stands by an earlier run
	lost    int     // lines that an earlier run released, in a store that has data from before that
	answers *answers
	file    *resultFile // nil in a dry run
	counts  map[operate.Outcome]int
	would   map[string]int // of a dry run: decision and route
	told    int
}

func (c *decisions) decideFile() *cobra.Command {
	var who cli.Author
	r := fileRun{decisions: c}
	cmd := &cobra.Command{
		Use:   "decide --from FILE --reason TEXT",
		Short: "Settle many open outcomes by a file",
		Long: `Settle the open attempts that FILE decides. FILE is the CSV of "record export", with
the columns decision and answer filled in. See there for what they mean, and "record
resolve" for what a decision promises.

First every line is checked, and the answers that FILE names. If one is malformed,
nothing is changed, and each such line is named (exit code 2). The same holds for a
key that is in two lines, and for attempts whose locks the flags do not reach.

Then each attempt is settled under the lock of its key, and only if it is still the one
that was exported, by its number, its fence and its nonce. The results are
  settled          the decision stands
  already settled  it stood before, for example by a run that was killed
  changed since    the attempt was settled otherwise, or another one began
  locked           its holder runs, or has died and its session is not over yet
  failed           with the reason; a server that does not answer may have settled it

A line for each result is written to FILE.results.csv. Run the same command again to go
on after an interruption, and for lines that were locked or failed. Lines whose decision
stands are then left out. SIGTERM ends a run after the decisions that are under way. If
the result file cannot be written, the run ends in the same way, and what it could not
write is printed. Two runs with one result file exclude each other (exit code 75), and two
runs on different machines do no harm.

--dry-run changes nothing and says what would be done.

Exit codes: 0 every decision stands or was left; 1 some do not stand; 2 FILE is wrong, and
nothing was changed; 75 another run has the result file.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record decide --from doubts.csv --reason "bad deploy, ticket 4711" --dry-run
  idemctl --redis redis://127.0.0.1:6379 record decide --from doubts.csv --reason "bad deploy, ticket 4711" --rate 500`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if r.decision, err = who.Decision(cmd); err != nil {
				return err
			}
			if err := r.checkFlags(cmd); err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.from, "from", "", "the CSV `FILE` with the decisions")
	who.Flags(cmd)
	f.BoolVar(&r.dryRun, "dry-run", false, "change nothing, and say what would be done")
	f.Float64Var(&r.rate, "rate", defaultRate, "most decisions a second; 0: as fast as the servers are")
	f.StringVar(&r.results, "results", "", "result file (default: FILE.results.csv)")
	f.StringSliceVar(&r.allow, "allow-header", nil, "`NAME` of another header that the service replays")
	f.StringVar(&r.transport, "transport", "", "http or grpc, if the routes look like the other one")
	servers.NoZooKeeper(cmd, &r.noZooKeeper)
	f.BoolVar(&r.marking, "durable-markers", false, "also change the keys' durable markers, if the services leave markers in ZooKeeper")
	f.DurationVar(&r.resultTTL, "result-ttl", idem.DefaultResultTTL, "how long to keep responses, if the records do not say longer")
	f.DurationVar(&r.keyTTL, "key-ttl", idem.DefaultKeyTTL, "how long to remember keys, if neither the records nor --result-ttl say longer")
	return cmd
}

func (r *fileRun) checkFlags(cmd *cobra.Command) error {
	r.timed = cmd.Flags().Changed("key-ttl")
	switch {
	case r.from == "":
		return cli.WrongUse("record decide wants --from FILE")
	case r.decision.Reason == "":
		return cli.WrongUse("record decide wants --reason TEXT, which is kept with each decision")
	case r.rate < 0 || r.rate != r.rate:
		return cli.WrongUse("--rate is negative")
	case r.resultTTL <= 0 || r.keyTTL <= 0:
		return cli.WrongUse("--result-ttl or --key-ttl is not positive")
	case cmd.Flags().Changed("transport") && !slices.Contains([]operate.Transport{operate.OverHTTP, operate.OverGRPC}, operate.Transport(r.transport)):
		return cli.WrongUse("--transport %q is neither http nor grpc", r.transport)
	case r.noZooKeeper && r.servers.ZooKeeper.Servers != "":
		return servers.ErrBothWays
	}
	for _, name := range r.allow {
		if !answer.IsHeaderName(name) {
			return cli.WrongUse("--allow-header %q is not the name of a header", name)
		}
	}
	r.results = cmp.Or(r.results, r.from+".results.csv")
	return nil
}

func (r *fileRun) run(ctx context.Context) (err error) {
	if err := r.read(); err != nil {
		return err
	}
	defer func() { _ = r.answers.root.Close() }()
	b, err := r.servers.Open(ctx, servers.Need{ReadOnly: r.dryRun})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := r.leaveOut(ctx, b.Store); err != nil {
		return err
	}
	if r.file != nil {
		defer func() { err = cmp.Or(err, r.file.Close()) }()
	}
	engines, err := r.engines(ctx, b, &r.verdict)
	if err != nil {
		return err
	}
	defer engines.close()
	engines.dry = r.dryRun
	if err := r.fits(ctx, b, engines); err != nil {
		return err
	}
	return r.settleAll(ctx, b, engines)
}

// read reads and checks the whole file.
func (r *fileRun) read() error {
	wrongFile := func(err error) error { return cli.UsageError{Err: fmt.Errorf("--from %s: %w", r.from, err)} }
	f, err := os.Open(r.from)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("--from: %w", err)}
	}
	data, err := io.ReadAll(io.LimitReader(f, mostSheet+1))
	_ = f.Close()
	switch {
	case err != nil:
		return err
	case len(data) > mostSheet:
		return wrongFile(fmt.Errorf("it has more than %d bytes; split it", mostSheet))
	}
	lines, wrong, err := readSheet(data)
	if err != nil {
		return wrongFile(err)
	}
	root, err := os.OpenRoot(filepath.Dir(r.from))
	if err != nil {
		return err
	}
	r.answers = &answers{root: root, transport: operate.Transport(r.transport), allow: r.allow, cache: map[string]cachedAnswer{}}
	for _, l := range lines {
		if l.decision == "" {
			r.left++
			continue
		}
		if l.answer != "" && l.answer != answerKept {
			if err := r.answers.check(l); err != nil {
				wrong = append(wrong, lineError{l.number, err})
			}
		}
		r.lines = append(r.lines, l)
	}
	if len(wrong) == 0 {
		return nil
	}
	_ = root.Close()
	return wrongFile(r.malformed(wrong))
}

// malformed names the lines.
func (r *fileRun) malformed(wrong []error) error {
	slices.SortStableFunc(wrong, func(a, b error) int {
		x, _ := errors.AsType[lineError](a)
		y, _ := errors.AsType[lineError](b)
		return cmp.Compare(x.line, y.line)
	})
	for i, err := range wrong {
		if i == mostTold {
			r.print.io.Sayf("… and %d lines more", len(wrong)-i)
			break
		}
		r.print.io.Sayf("%s", cli.OneLine(err))
	}
	return fmt.Errorf("%d lines are malformed; nothing was changed", len(wrong))
}

// leaveOut opens the result file, and leaves out what an earlier run has done.
func (r *fileRun) leaveOut(ctx context.Context, store driver.Store) (err error) {
	var done map[string]bool
	if r.dryRun {
		data, err := os.ReadFile(r.results)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		earlier := resultFile{done: map[string]bool{}}
		if err := earlier.read(data); err != nil {
			return cli.UsageError{Err: fmt.Errorf("%s: %w", r.results, err)}
		}
		done = earlier.done
	} else {
		if r.file, err = openResults(r.results); err != nil {
			return err
		}
		done = r.file.done
	}
	var before []*line
	r.lines = slices.DeleteFunc(r.lines, func(l *line) bool {
		if done[l.id()] {
			before = append(before, l)
		}
		return done[l.id()]
	})
	again := 0 // a store that was restored from a backup has lost decisions
	look := operate.Bulk[*line]{
		Decide: func(ctx context.Context, l *line) operate.Result {
			rec, err := store.Get(ctx, l.doubt.ID)
			if rec.State.Open() && rec.Attempt == l.doubt.Attempt {
				return operate.Result{Outcome: operate.Changed}
			}
			if err != nil && rec.State == driver.StateNone {
				return operate.Result{Outcome: operate.Failed, Err: err}
			}
			return operate.Result{Outcome: operate.Already}
		},
		Report: func(l *line, result operate.Result) error {
			switch {
			case result.Outcome == operate.Changed && l.decision == sayApplied:
				again++
				r.lines = append(r.lines, l)
			case result.Outcome == operate.Changed:
				r.lost++
				result.Detail = "an earlier run released it, and it is in doubt again, so the store has older data"
				return r.tell(nil, l, &result, nil) // and the result file keeps that it was released
			case result.Outcome == operate.Already:
				r.earlier++
			}
			return result.Err
		},
	}
	if err := look.Run(ctx, slices.Values(before)); err != nil {
		if r.file != nil {
			_ = r.file.Close()
		}
		return err
	}
	if again > 0 {
		r.print.io.Sayf("%d attempts that an earlier run settled as applied are in doubt again, so the store has older data; they are settled again", again)
	}
	if r.lost > 0 {
		r.print.io.Sayf("%d keys may have run since they were released, and the store has lost it: look again, and decide them by a new export and another result file", r.lost)
	}
	return nil
}

// fits refuses a file that is not of these servers, before anything is changed.
func (r *fileRun) fits(ctx context.Context, b *servers.Backends, e *engines) error {
	if slices.ContainsFunc(r.lines, func(l *line) bool { return l.decision == sayApplied }) && !r.servers.Responses.Keys() {
		declared, err := b.Store.Sealed(ctx)
		if err != nil {
			return err
		}
		if declared {
			return errSealed
		}
	}
	var wrong []error
	for _, l := range r.lines {
		if _, err := e.of(ctx, l.doubt.ID, l.doubt.Attempt.Fence.Domain); errors.Is(err, driver.ErrUnavailable) {
			return err
		} else if err != nil {
			wrong = append(wrong, lineError{l.number, err})
		}
	}
	if len(wrong) > 0 {
		return cli.UsageError{Err: fmt.Errorf("--from %s: %w", r.from, r.malformed(wrong))}
	}
	sample := r.lines[:min(len(r.lines), looked)]
	for _, l := range sample {
		if rec, err := b.Store.Get(ctx, l.doubt.ID); err != nil || rec.State != driver.StateNone {
			return nil //nolint:nilerr // an error is told with the line
		}
	}
	if len(sample) > 0 {
		return cli.WrongUse("--from %s: none of the first %d keys has a record in this %s; it is probably of another store; nothing was changed", r.from, len(sample), b.Place())
	}
	return nil
}

// verdictOf is what a line says.
func (r *fileRun) verdictOf(l *line) *operate.Verdict {
	return &operate.Verdict{Applied: l.decision == sayApplied, Kept: l.answer == answerKept,
		Answer: func(route string) (*idem.Response, error) { return r.answers.of(l, route) }}
}

func (r *fileRun) settleAll(ctx context.Context, b *servers.Backends, e *engines) error {
	r.counts, r.would = map[operate.Outcome]int{}, map[string]int{}
	policy := idem.Policy{AllowGlobalKeys: true, ResultTTL: r.resultTTL, KeyTTL: r.keyTTL}
	if _, err := policy.WithDefaults(); err != nil {
		return cli.UsageError{Err: err}
	}
	var untimed atomic.Int64 // records that do not say how long their route remembers the key
	settler := operate.Settler{
		Store: b.Store,
		Settle: func(ctx context.Context, id driver.KeyID, rec *driver.Record) (operate.Settle, error) {
			if rec.KeyTTL == 0 {
				untimed.Add(1)
			}
			return e.of(ctx, id, rec.Attempt.Fence.Domain)
		},
		Policy: func(string) idem.Policy { return policy },
		DryRun: r.dryRun,
	}
	bar := newProgress(r.print.io.Err, len(r.lines))
	bulk := operate.Bulk[*line]{
		Rate: r.rate,
		Decide: func(ctx context.Context, l *line) operate.Result {
			return settler.Decide(ctx, &l.doubt, r.verdictOf(l), r.decision)
		},
		Report: func(l *line, result operate.Result) error {
			defer func() { bar.show(r.done()) }()
			return r.report(bar, l, &result)
		},
	}
	if r.dryRun {
		bulk.Rate = 0
	}
	err := bulk.Run(ctx, slices.Values(r.lines))
	bar.clear()
	if n := untimed.Load(); n > 0 && !r.timed {
		r.print.io.Sayf("%d records do not say how long their route remembers the key, because an earlier version began their attempts; "+
			"they are remembered for %v, and a request after that runs again: give --key-ttl if the route's is longer", n, r.keyTTL)
	}
	return r.sum(err)
}

// done is the number of results.
func (r *fileRun) done() (n int) {
	for _, k := range r.counts {
		n += k
	}
	return n
}

// report tells the result of a line.
func (r *fileRun) report(bar *progress, l *line, result *operate.Result) (err error) {
	r.counts[result.Outcome]++
	if r.file != nil {
		err = r.file.add(l, result, r.decision.By, time.Now())
	}
	if r.dryRun && result.Outcome == operate.Settled {
		r.would[l.decision+" on route "+operate.OneLine(l.doubt.Route)]++
	}
	return r.tell(bar, l, result, err)
}

// tell prints the result of a line. unwritten is why the result file does not have it, or nil.
func (r *fileRun) tell(bar *progress, l *line, result *operate.Result, unwritten error) (err error) {
	err = unwritten
	if r.print.io.JSON {
		err = cmp.Or(err, r.print.io.WriteJSON(newResultRow(l, result, r.dryRun)))
	}
	if err == nil && result.Outcome.Done() {
		return nil
	}
	if r.told++; r.told <= mostTold || err != nil {
		if bar != nil {
			bar.clear()
		}
		text := string(result.Outcome)
		if detail := detailOf(result); detail != "" {
			text += ": " + detail
		}
		r.print.io.Sayf("line %d: %s", l.number, text)
	}
	return err
}

// resultRow is the result of a line in JSON.
type resultRow struct {
	Line      int    `json:"line"`
	KeyID     string `json:"key_id"`
	AttemptID string `json:"attempt_id"`
	Decision  string `json:"decision"`
	Result    string `json:"result"`
	Detail    string `json:"detail,omitempty"`
	DryRun    bool   `json:"dry_run,omitempty"` // settled means that it would be
}

func newResultRow(l *line, result *operate.Result, dry bool) resultRow {
	return resultRow{l.number, l.doubt.ID.String(), operate.FormatAttempt(l.doubt.Attempt), l.decision, string(result.Outcome), detailOf(result), dry}
}

// sum tells the results of a run. err is why it ended early, or nil.
func (r *fileRun) sum(err error) error {
	notDone, reached := r.lost, r.done()
	for outcome, n := range r.counts {
		if !outcome.Done() {
			notDone += n
		}
	}
	parts := []string{}
	for _, o := range []operate.Outcome{operate.Settled, operate.Already, operate.Changed, operate.Locked, operate.Failed} {
		n := r.counts[o]
		if o == operate.Changed {
			n += r.lost
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, o))
	}
	text := strings.Join(parts, ", ")
	if r.dryRun {
		text = "would be: " + text
	}
	text += fmt.Sprintf("; %d by an earlier run, %d left", r.earlier, r.left)
	if n := len(r.lines) - reached; n > 0 {
		text += fmt.Sprintf(", %d not reached", n)
	}
	out := r.print.io.Out
	if r.print.io.JSON {
		out = r.print.io.Err
	}
	fmt.Fprintln(out, text)
	for _, what := range slices.Sorted(maps.Keys(r.would)) {
		fmt.Fprintf(out, "  %d as %s\n", r.would[what], what)
	}
	if r.told > mostTold {
		r.print.io.Sayf("… and %d lines more", r.told-mostTold)
	}
	again := "run the same command again to go on"
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted after %d of %d decisions; %s", reached, len(r.lines), again)
	case err != nil: // as text, because the error of a line does not decide the exit code
		return fmt.Errorf("stopped after %d of %d decisions: %s; %s", reached, len(r.lines), err.Error(), again)
	case notDone > 0:
		return fmt.Errorf("%d of %d decisions do not stand; %s", notDone, len(r.lines)+r.lost, again)
	}
	return nil
}
