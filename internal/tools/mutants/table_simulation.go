package main

// simulationMutants are faults that the first seeds of the simulation catch, wherever they
// are.
var simulationMutants = []Mutant{
	{Name: "a failed handler had no effect", File: "idem/settle.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "\tcase run.err != nil:\n\t\treturn outcomeInDoubt", New: "\tcase run.err != nil:\n\t\treturn outcomeNoEffect"},
	{Name: "a delete without an answer counts as done", File: "lock/zookeeper/internal/held/release.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "\t\t\tdoubt = true\n", New: "\t\t\treturn nil\n"},
	{Name: "a znode is never deleted", File: "lock/zookeeper/internal/held/release.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "l.removed(l.t.remove(rm))", New: "_ = rm\n\t\tl.removed(nil)"},
	{Name: "a lock of another session is removed", File: "lock/zookeeper/acquire.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "\t\tcase n.Session != s.ID():\n", New: "\t\tcase n.Session != s.ID() && false:\n"},
	{Name: "a fence is rounded", File: "lock/zookeeper/acquire.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "\t\t\t\treturn at, r.Zxid, err", New: "\t\t\t\treturn at, r.Zxid &^ 0xff, err"},
	{Name: "the lock is given back in place of an Abort", File: "idem/begin.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "the Abort may hide what was decided\n\t\t\t}\n\t\t\te.undo(ctx, r, lease, req, err)", New: "the Abort may hide what was decided\n\t\t\t}\n\t\t\tlease.ReleaseInBackground()"},
	{Name: "the lock is released before the outcome is settled", File: "idem/settle.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "\terr := e.inStep(ctx, telemetry.StepSettle, run", New: "\trun.lease.ReleaseInBackground()\n\terr := e.inStep(ctx, telemetry.StepSettle, run"},
	{Name: "a pending attempt makes room for the next one", File: "idem/driver/rules/begin.go", Package: "./tests/simulate", Test: "TestSimulate",
		Old: "return req.RunAgainFrom == nil && idle(r) &&", New: "return req.RunAgainFrom == nil && (idle(r) || r.State == driver.StatePending) &&"},
}
