// Package sweeper settles outcomes in doubt without waiting for a client to
// retry. An outcome is in doubt when its holder died, or when the handler could
// not tell what happened.
//
// # What it sweeps
//
// One instance at a time is the leader. It walks over the open records of the
// token store, oldest first, again and again:
//
//	               ┌─ held: a handler runs, or a client is being answered: left alone
//	open record ───┤
//	               └─ lock taken ─▶ Resolver ─┬─ Applied       stored, replayed from now on
//	                                          ├─ NotApplied    released, a retry runs
//	                                          └─ StillUnknown  unknown; once into the inbox,
//	                                                           asked again ever less often
//
// A route without a resolver, or a resolver that cannot tell, needs a person.
// Such an attempt goes into the [Inbox] once.
//
// A route that runs again in doubt is left to the next request with the key.
// When the attempt is older than the key's time to live, the sweeper releases it.
//
// An unreadable record hurts only itself. A corrupt one goes into the inbox. One
// written by a newer build is left to an instance of that build.
//
// # How the office is held and yielded
//
// [WithLead] elects the leader. Without it every instance sweeps, which is right
// for a service of one instance. [ByLock] makes the leader with any lock service.
// ZooKeeper's election is the better choice where there is one.
//
// The leader keeps its office until its leadership ends or Run is told to stop.
// The exception is a pass that met records of a newer build. After that pass the
// leader gives the office up once, so that a newer instance can take it, and
// stands for it again after the pause.
//
// # What is guaranteed
//
// The sweeper decides nothing that a request could not decide.
// [idem.Engine.Resolve] takes the key's lock and settles by compare-and-set on
// the attempt. So leadership only saves work. Two leaders, as there may be for a
// moment around a partition, come to one decision per attempt. A leader that dies
// half-way leaves nothing behind, because all it knows is in the store.
//
// Work is bounded. The sweeper reads pages of records and settles a few of them
// at once. It pauses after each pass, longer after a long one. The pause before it
// looks at the same record again doubles each time.
//
// The sweeper is as right as the resolver. [idem.Resolver] says what NotApplied
// promises.
//
// # What to watch
//
// [WithObserver] reports a [Pass] after each walk, ready to be counted. A gauge of
// Pass.Newer and Pass.Corrupt shows the unreadable records.
package sweeper
