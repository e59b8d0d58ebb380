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
// Without a resolver, or if the resolver cannot tell, a person has to decide.
// Such an attempt goes into the [Inbox] once.
//
// On routes with idem.RunAgain the next request with the key runs it again. The
// sweeper releases such an attempt when it is older than the key's time to live.
//
// An unreadable record hurts only itself. A corrupt one goes into the inbox. One
// written by a newer build is left to an instance of that build.
//
// # How the office is held and yielded
//
// [WithLead] elects the leader. Without it every instance sweeps. A service of one
// instance needs no more. [ByLock] makes the leader with any lock service.
// ZooKeeper's election is the better choice where there is one.
//
// The leader keeps its office until its leadership ends or the context of Run does.
// There is one exception. If a pass met records of a newer build, the leader gives
// the office up once after the pass, and a newer instance can take it. The leader
// stands for it again after the pause.
//
// # What is guaranteed
//
// The sweeper decides no more than a request could. [idem.Engine.Resolve] takes the
// key's lock and settles by compare-and-set on the attempt. So leadership only saves
// work. Around a partition there may be two leaders for a moment, and they come to one
// decision per attempt. A leader can die half-way, because it keeps everything in the
// store.
//
// Work is bounded. The sweeper reads pages of 100 records and settles up to eight of them
// at once. A resolver that may make fewer calls limits itself. The sweeper pauses after each pass, longer after a long one. The pause before it
// looks at the same record again doubles each time, and the store does not read the
// record meanwhile.
//
// No route holds up another one, and no record starves. A route whose provider takes
// longer than a second, or whose records fail in a row, makes four calls at a time
// beside those of the others, and tries those records first that were
// tried least.
//
// The sweeper is as right as the resolver. [idem.Resolver] has the promise of
// NotApplied.
//
// # What to watch
//
// [WithObserver] reports a [Pass] after each walk, ready to be counted. A gauge of
// Pass.Newer and Pass.Corrupt shows the unreadable records.
package sweeper
