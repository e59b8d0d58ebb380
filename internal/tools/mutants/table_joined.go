package main

// joinedMutants are faults in joined mode. Its tests here use a joined store in memory.
var joinedMutants = []Mutant{
	{Name: "a COMMIT without an answer counts as rolled back", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedCommitWithoutAnswerIsProbed",
		Old: "return e.probe(ctx, run, err)", New: "return nil, refuse(CodeUnavailable, err)"},
	{Name: "a success without the transaction passes", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedSuccessWithoutTheTransactionIsUnknown",
		Old: "if !run.execution.taken.Load() && succeeded(run.Transport, run.response.Status) {", New: "if false {"},
	{Name: "a COMMIT past its time goes on", File: "tokenstore/sql/joined_session.go", Package: "./tokenstore/sql", Test: "TestCommitPastItsTimeIsCancelled",
		Old: "err := s.within(ctx, s.tx.Commit)\n\tif s.stuck != nil {\n\t\ts.cancel()", New: "err := s.within(ctx, s.tx.Commit)\n\tif s.stuck != nil {"},
	{Name: "a refusal commits the writes of its handler", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedEnd",
		Old: "case succeeded(run.Transport, run.response.Status), run.execution.keepWrites.Load():", New: "case true:"},
	{Name: "a failure commits the writes of its handler", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedEnd",
		Old: "case run.outcome() != outcomeCompleted:\n\t\treturn e.rollBack", New: "case false:\n\t\treturn e.rollBack"},
	{Name: "another request follows an attempt that other systems have seen", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedBindingSurvivesARollback",
		Old: "same, err := r.matches(bound)\n", New: "same, err := r.matches(bound)\n\tsame = true\n"},
	{Name: "a transaction that its handler ended counts as rolled back", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedTransactionEndedByTheHandlerIsUnknown",
		Old: "if err := e.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {\n\t\treturn e.escaped(ctx, run, errors.Join(err, cause))", New: "if err := e.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) && false {\n\t\treturn e.escaped(ctx, run, errors.Join(err, cause))"},
	{Name: "a handler runs again after any error", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedConflictRunsTheHandlerAgain",
		Old: "if run.err != nil && run.tx.Conflict(run.err) {", New: "if run.err != nil {"},
	{Name: "a joined handler starts after Close", File: "idem/joined.go", Package: "./idem", Test: "TestJoinedNothingStartsAfterClose",
		Old: "if !e.work.startHandler() {", New: "if !e.work.startHandler() && false {"},
	{Name: "a key is free before the escape of its transaction is recorded", File: "idem/joined_misuse.go", Package: "./idem", Test: "TestJoinedEscapeIsRecordedOnceTheStoreIsBack",
		Old: "defer tx.Release(ctx)", New: "tx.Release(ctx)"},
}
