// Command changes makes small changes to a package, one at a time, and shows which of them the
// tests notice:
//
//	changes [-quick] [-tests pkg,pkg] [-run regexp] [-only text] [-part 1/3] [-again file] [-budget 30s] [-grace 5s] [-list] ./idem
//
// The usual tools compile the package once per change. That takes hours for the packages of this
// module, and such a tool leaves out the conditions of case lines. This one compiles all changes
// at once, each behind a switch, and an environment variable turns one of them on.
//
// # Changes
//
// Generated files and tests are not changed. The types of the package decide what compiles:
// constants, and values of a defined boolean type, stay as they are.
//
//   - condition true, condition false: a condition of if, for or case, or a whole expression of &&
//     and ||, has always this value. Each operand of && is true, and each operand of || is false.
//     The other value of an operand is that of the whole.
//   - limit: a comparison includes its limit, or excludes it.
//   - negated: == becomes !=, or the other way round, where it is not a condition by itself.
//   - left out: a call, an assignment, or a statement that sends or receives. Declarations stay,
//     and so do calls of panic.
//   - no error: a returned error is nil. Its expression is evaluated all the same.
//   - difference, sum: + becomes -, or the other way round, with numbers.
//
// # Verdicts
//
// First each test runs by itself, without a change. It tells which switches it passes and how
// long it takes. A test that fails then is left out, and so named. A change is tried by the tests
// that pass its switch, the fastest first, in processes of more and more tests.
//
//   - noticed: a test fails, or panics, or does not end in time (these are counted as late too). The
//     time is three times that of the sound runs, and 5 seconds or as -grace says.
//   - survived: all of them pass.
//   - unreached: no test passes the switch.
//
// After every 50 changes the same tests run without a change. If they fail, the run ends, because
// its verdicts mean nothing. Two processes run at a time. Tests with servers share a ZooKeeper, a
// Redis and so on, which the command starts anew after every 100 processes.
//
// # Flags
//
// -quick gives the tests -short, so they need no server. -tests names more packages whose tests
// count, and -run selects the tests by their names. -only takes the changes that have a text in
// "file:line: kind: code", and -part every n-th of them, from the i-th on. -again reads what -list
// has printed, and takes these changes once more. -budget leaves out tests of a change when the
// sound runs of the others take this long together, and first the tests that pass the most switches.
// -list prints each change that survived or was not reached.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// options are what the command line says.
type options struct {
	root, pkg string
	tests     []string
	names     string // of the tests, a regular expression
	quick     bool
	only      string
	part, of  int
	again     string
	budget    time.Duration
	grace     time.Duration
	list      bool
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "changes:", err)
		os.Exit(2)
	}
	testing.Init() // testserver asks for -short
	_ = flag.CommandLine.Parse(nil)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "changes:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("changes", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "run the tests with -short, so without a server")
	tests := flags.String("tests", "", "more `packages` whose tests count, with commas")
	flags.StringVar(&o.names, "run", ".", "take the tests whose names match this `regexp`")
	flags.StringVar(&o.only, "only", "", "take the changes that have this `text` in file:line: kind: code")
	part := flags.String("part", "0/1", "take every n-th change, from the i-th on, as `i/n`")
	flags.StringVar(&o.again, "again", "", "take the changes that this `file` lists, from an earlier run with -list")
	flags.DurationVar(&o.budget, "budget", 0, "leave out tests of a change beyond this sum of their sound runs")
	flags.DurationVar(&o.grace, "grace", 5*time.Second, "what the tests of a change may take beside three times their sound runs")
	flags.BoolVar(&o.list, "list", false, "print each change that survived or was not reached")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if _, err := fmt.Sscanf(*part, "%d/%d", &o.part, &o.of); err != nil || o.part < 0 || o.of < 1 {
		return o, fmt.Errorf("-part %q: want i/n", *part)
	}
	if flags.NArg() != 1 {
		return o, fmt.Errorf("want one package, got %q", flags.Args())
	}
	o.root, o.pkg = ".", flags.Arg(0)
	o.tests = []string{o.pkg}
	if *tests != "" {
		o.tests = append(o.tests, strings.Split(*tests, ",")...)
	}
	return o, nil
}
