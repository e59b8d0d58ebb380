// Command mutants shows that the tests notice deliberate faults:
//
//	mutants [-quick] [-only text] [-part 1/4] [-parallel 2] [-whole] [-table]
//
// It copies the tree of the module to a temporary directory. First it runs the tests that the
// faults name, and each of them has to pass. Then it puts one fault after the other into the
// copy, runs the named test, and that has to fail. A line for each fault says how it went, and
// the last line counts them. The exit status is 1 if anything was different.
//
// -parallel is the number of copies that it works on at the same time. The default is twice the number
// of processors, up to 4, because many tests only wait. The lines come in the order in which the tests end.
//
// Each fault is a patch in the folder faults, and [parseFaults] says how to write one. It replaces code that
// occurs exactly once in a file. Comments and white space do not count. If the code is not there, it has
// changed, and the fault counts as a failure until somebody has looked at it. A fault that does not compile is
// a failure too.
//
// -quick leaves out the tests that need a server. -only takes the faults whose name or package contains a
// text. -part takes every n-th of those that are left, from the i-th on, counted from zero. -whole runs all tests of the package with each fault, and tells which one failed. It helps to
// find the test for a new fault. -table prints all faults as a table in Markdown.
//
// A fault also counts as caught if its test does not end. A test gets five times the time that it took without a
// fault, and ten seconds more, or a minute more if it starts a server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	quick := flag.Bool("quick", false, "leave out the tests that need a server")
	only := flag.String("only", "", "take the faults whose name or package contains this")
	parallel := flag.Int("parallel", min(4, 2*runtime.NumCPU()), "work on so many copies at the same time")
	part := flag.String("part", "0/1", "take every n-th fault, from the i-th on, as `i/n`")
	whole := flag.Bool("whole", false, "run all tests of the package with each fault")
	table := flag.Bool("table", false, "print all faults as a table in Markdown")
	flag.Parse()
	all, err := allFaults()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	if *table {
		fmt.Fprint(os.Stdout, Table(all))
		return
	}
	var i, n int
	if _, err := fmt.Sscanf(*part, "%d/%d", &i, &n); err != nil || i < 0 || i >= n {
		fmt.Fprintf(os.Stderr, "mutants: -part %q: want i/n, with 0 <= i < n\n", *part)
		os.Exit(2)
	}
	var chosen []Fault
	for _, f := range all {
		if strings.Contains(f.Package+" "+f.Name, *only) && (!*quick || !f.Server) {
			chosen = append(chosen, f)
		}
	}
	chosen = partOf(chosen, i, n)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, chosen, *parallel, *whole)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// partOf returns every n-th fault, from the i-th on.
func partOf(all []Fault, i, n int) (part []Fault) {
	for ; i < len(all); i += n {
		part = append(part, all[i])
	}
	return part
}
