// Command compare runs the benchmarks of package bench and says how Idemkeeper
// stands beside its peers. Called in the folder bench by make bench:
//
//	compare [-rounds 5] [-benchtime 1s] [-bench regexp] [-timeout 20m]
//
// It prints a table of all cases, a table of the comparisons, with the least and
// the greatest value of a single round, and for scripts a line for each:
//
//	RATIO name value goal
//
// A goal that was missed is said in the table and is no failure: the machine may
// have been busy. The exit status is 1 when the benchmarks failed, and when the
// whole suite ran and a case of a comparison is not in its output.
package main
