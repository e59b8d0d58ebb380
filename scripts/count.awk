# Counts the events of go test -json (go doc test2json). The last line that it prints is
# "N passed, N failed", and with -v quick=1 also how many tests were left out. The exit status
# is 1 if anything failed or no test ran. status is the exit status of the run.
#
# These count as failed, though go test may call them a success: a skipped test, and a test without
# an end. Also a package that failed without a failing test, because it did not build or its
# TestMain exited, a module that failed without a failing package, and a run that broke off.
#
# internal/test/testserver skips tests with two reasons that are allowed. With -v quick=1 a test that
# needs a server counts as left out. A test whose server this machine cannot have counts as
# neither, and a line "NOT RUN: N, reason" says so.

# The value of a text field, with its escapes.
function field(name,    start) {
	if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	start = RSTART + length(name) + 4
	return substr($0, start, RSTART + RLENGTH - start - 1)
}

{
	action = field("Action"); package = field("Package"); test = field("Test"); key = package " " test
	if (package == "") next
}
action == "start" { open[package] = 1 }
action == "run" { running[key] = package }
action == "output" && quick && /needs a server, left out under -short/ { reason[key] = "left out" }
action == "output" && match($0, /not run here: /) {
	reason[key] = substr($0, RSTART + RLENGTH)
	sub(/\\n"}$/, "", reason[key])
}
(action == "pass" || action == "fail" || action == "skip") && test != "" {
	delete running[key]
	if (action == "pass") passed++
	else if (action == "skip" && reason[key] == "left out") left_out++
	else if (action == "skip" && reason[key] != "") not_run[reason[key]]++
	else failure(action == "skip" ? "SKIPPED, which counts as failed" : "FAIL")
	delete reason[key]
}
(action == "pass" || action == "fail" || action == "skip") && test == "" { close_package(action == "fail") }

function failure(what) {
	failed++
	bad[package] = 1
	problems[failed] = what ": " key
}

# A test that still runs at the end of its package never ended.
function close_package(broken,    k) {
	delete open[package]
	for (k in running) if (running[k] == package) { key = k; failure("NEVER ENDED"); delete running[k] }
	key = package
	if (broken && !bad[package]) failure("FAIL (the package itself)")
}

END {
	for (package in open) close_package(1)
	if (status > 1 || status && !failed) { key = "the run, with status " status; failure("BROKE OFF") }
	print ""
	for (r in not_run) print "NOT RUN: " not_run[r] ", " r
	for (i = 1; i <= failed; i++) print problems[i]
	if (passed + failed == 0) print "no test ran"
	print passed + 0 " passed, " failed + 0 " failed" (quick ? ", " left_out + 0 " left out" : "")
	exit failed > 0 || passed + failed == 0
}
