// Command compare runs the benchmarks of package bench and reports Idemkeeper beside
// its peers. make bench calls it in the folder bench:
//
//	compare [-rounds 5] [-benchtime 1s] [-bench regexp] [-timeout 20m]
//
// It prints a table of all cases, and a table of the comparisons with the least and
// the greatest value of a single round. Scripts read a line for each comparison:
//
//	RATIO name value goal
//
// The table says which goals were missed. A missed goal is no failure, because the
// machine may have been busy. The exit status is 1 if a benchmark failed, or if the
// whole suite ran without a case of a comparison.
package main
