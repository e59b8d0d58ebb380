// Package sweeper settles outcomes in doubt without waiting for a client to
// retry: attempts whose holder died, and attempts whose outcome their handler
// could not tell.
//
// # What it does
//
// One instance at a time, the leader, walks over the open records of the token
// store, oldest first, again and again:
//
//	               ┌─ held: a handler runs, or a client is being answered: left alone
//	open record ───┤
//	               └─ lock taken ─▶ Resolver ─┬─ Applied       stored, replayed from now on
//	                                          ├─ NotApplied    released, a retry runs
//	                                          └─ StillUnknown  unknown; once into the inbox,
//	                                                           asked again ever less often
//
// What only a person can settle, because there is no resolver or it cannot
// tell, is put into the [Inbox] once per attempt.
//
// A record that cannot be read hurts only itself. One that is corrupt goes into
// the inbox. One that a newer build wrote is left to an instance of such a build:
// after each pass that met some, the leader yields the office once, and stands for
// it again after the pause. All others are settled as always.
//
// # What is guaranteed
//
// The sweeper decides nothing that a request could not: [idem.Engine.Resolve]
// takes the key's lock, and settles by compare-and-set on the attempt. So
// leadership only saves work. Two leaders, as there may be for a moment around
// a partition, come to one decision per attempt, and a leader that dies half-way
// leaves nothing behind that the next one does not find: all it knows is in the
// store.
//
// Work is bounded: pages of records, a few of them at once, a pause after each
// pass that grows with it, and for each record one that doubles.
//
// # What is not
//
// The sweeper is as right as the resolver is; see [idem.Resolver] for what
// NotApplied promises.
package sweeper
