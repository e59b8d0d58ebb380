package main

// edgeMutants are faults in the sweeper and the middleware.
var edgeMutants = []Mutant{
	{Name: "the sweeper resolves where a route runs again", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestRunAgainIsLeftAloneUntilTheKeyIsOld",
		Old: "if policy.InDoubt.RunsAgain() {", New: "if false {"},
	{Name: "the sweeper releases before the key's time to live", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestRunAgainIsLeftAloneUntilTheKeyIsOld",
		Old: "if len(page.Records) == 0 || !page.Records[0].Record.Started.Equal(after.Started) {", New: "if len(page.Records) > 1 {"},
	{Name: "the sweeper queues a held record for people", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestLiveHolderIsLeftAlone",
		Old: "count, pause = &p.Held, mostHeld", New: "count, reason = &p.Held, \"held\""},
	{Name: "the sweeper stops at a record of a newer build", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestNewerRecordsAreLeftToNewerInstances",
		Old: "if errors.Is(row.Err, idem.ErrNewerRecord) {\n\t\tp.Newer++", New: "if false {\n\t\tp.Newer++"},
	{Name: "the sweeper sees the first page only", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestInterruptedAttemptsAreSettledWithoutARetry",
		Old: "if q.After = page.Next; q.After == nil {", New: "if q.After = page.Next; true {"},
	{Name: "a panic of the application stops the sweeper", File: "sweeper/pass.go", Package: "./sweeper", Test: "TestPoliciesThatPanicStopNothing",
		Old: "if v := recover(); v != nil {", New: "if v := any(nil); v != nil {"},
	{Name: "a replay sends every stored header", File: "middleware/exchange/answer.go", Package: "./middleware/http", Test: "TestMiddleware",
		Old: "if rt.replay.Has(name) {", New: "if true {"},
	{Name: "a refusal in its own format may be an empty 200", File: "middleware/exchange/answer.go", Package: "./middleware/http", Test: "TestMiddleware",
		Old: "if c.Refuse(w, r); w.begun() {", New: "if c.Refuse(w, r); true {"},
	{Name: "a refusal may be cached", File: "middleware/exchange/answer.go", Package: "./middleware/http", Test: "TestMiddleware",
		Old: "h.Set(\"Cache-Control\", \"no-store\")\n\tif r.RetryAfter", New: "if r.RetryAfter"},
	{Name: "a relayed refusal is kept as the outcome", File: "middleware/exchange/serve.go", Package: "./middleware/http", Test: "TestMiddleware",
		Old: "adapter.Relayed(w.relayed())", New: "adapter.Relayed(\"\")"},
	{Name: "gRPC: a relayed refusal is kept as the outcome", File: "middleware/grpc/refusal.go", Package: "./middleware/grpc", Test: "TestRelayedRefusalsAreInDoubt",
		Old: "info.GetDomain() == Domain {", New: "info.GetDomain() == Domain && false {"},
}
