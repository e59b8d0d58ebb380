package testserver

import (
	"flag"
	"strconv"
)

// ParallelTests lets up to n tests run at once, unless the command line says how many. It is for
// packages whose tests mostly wait for other processes, so that more of them than there are cores
// can run at once. Call it in TestMain, before Main.
func ParallelTests(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // only outside of a test binary
	}
}
