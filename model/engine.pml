/* The requests of one instance for one key, one after the other: idem/engine.go. Each atomic
 * block is one call to another system, together with what the engine makes of the answer. Other
 * processes can act between any two of them, which is how the model pauses an instance.
 *
 *   step here                     code
 *   read the record               read, judge in idem/core.go
 *   take the lock, see the marker lock in idem/lockmode.go, create in lock/zookeeper/lock.go
 *   heeded, restore               heed, counts, follows, restoreMarked, restoreUnderLease in idem/mark.go
 *   beginning, and the lease      begin, started in idem/lockmode.go, beforeMarker in idem/mark.go
 *   once more
 *   begin, abort, settle          begin.lua, abort.lua and settle.lua in tokenstore/redis/lua, with stale of prelude.lua
 *   markBegun, neverRan           markBegun in idem/mark.go, neverRan in idem/late.go, lock/zookeeper/marker_begun.go
 *   executing                     execute in idem/execution.go, finish in idem/lockmode.go
 *   settling, markFrom            settle in idem/lockmode.go, settleInBackground in idem/late.go, mark in idem/mark.go
 *   aborting                      undo, abort in idem/abort.go
 *   beginLocked, settleUnlock     begin_locked.lua and settle_locked.lua in tokenstore/redis/lua
 *   undo, comesAgain, withoutLock undoOffered, comesAgain, undoWithoutLock in idem/combined.go
 *   found, look, settlingDoubt    found, ask, settleAs in idem/resolve.go, outlives in idem/held.go
 *   releasing, release            deletion in lock/zookeeper/lock.go, leave in lock/zookeeper/marker.go
 *   sweeps                        Engine.Resolve in idem/decide.go, called by sweeper/pass.go
 *   joined.pml                    attempt, begin, commit, probe, rollBackAndRecord in idem/joined.go, escaped in
 *                                 idem/joined_misuse.go, tokenstore/sql/joined_end.go
 */

/* The next copy of a message may come late, because its reply was lost. */
#define MAY_LOSE (MAY(replies) && late.op == NOTHING)
#define LOSE replies--; printf("instance %d gets no answer\n", p)

inline keepLate(what, no, under, goal, name, reply, sure) {
	late.op = what; late.at = k; late.num = no; late.fence = under; late.into = goal; late.by = name; late.told = reply; late.safe = sure
}

/* Lease.Err, by the lease clock. */
#define HELD (!lost && owner[k] == f)

/* later and counts in idem/mark.go compare a record with the marker found under the lock. */
#define LATER(no, since) (mf < since && no > mn)
#define COUNTS (rec[k].st == COMPLETED || rec[k].st != NONE && mst == UNKNOWN && LATER(rec[k].num, rec[k].fence))
#define MARKED (rec[k].num == mn && rec[k].fence == mf)

#define MARK_COUNTS(no, since) (mst == NONE || mst == UNKNOWN && (no == mn && since == mf || LATER(no, since)))

/* The marked attempt was decided since, as we saw under the lock. */
#define OBSOLETE (mst == UNKNOWN && rec[k].st == RELEASED && MARK_COUNTS(rec[k].num, rec[k].fence))


/* follows in idem/mark.go: an attempt may begin in place of this record. */
#ifdef MUTANT_REPLACED_IGNORED
#define ALLOWED true
#else
#define ALLOWED (mst == NONE || COUNTS || mst == UNKNOWN && (MARKED || OPEN(rec[k].st)))
#endif

/* What a combined call with this number has left in the record. Its number stands for its nonce and for the owner of
 * its lock. */
#define ITS(call) (rec[k].st != NONE && (nonces[call] & (1 << rec[k].fence)))

/* mark in idem/mark.go sets the marker for the release, from a record. */
inline markFrom(state, no, since) {
	if
	:: state == COMPLETED -> mst = COMPLETED; mn = no; mf = since
	:: state == UNKNOWN && MARK_COUNTS(no, since) -> mst = UNKNOWN; mn = no; mf = since
	:: state == RELEASED && MARK_COUNTS(no, since) -> mst = NONE; mn = 0; mf = 0
	:: else -> mst = KEEP; mn = 0; mf = 0
	fi
}

/* A decision that nothing happened writes no record anew. Its attempt may have been undone, and
 * a later one may have begun with the same number. */
#ifdef MUTANT_DECISION_REPAIRS
#define REPAIRS(target) true
#else
#define REPAIRS(target) ((target) != RELEASED)
#endif

/* The end of heed: what counts, the record or the marker. */
inline heeded() {
	v = 0;
	if
	:: COUNTS -> ok = OBSOLETE; goto beginning
	:: !COUNTS && OPEN(rec[k].st) && mst == COMPLETED -> rn = rec[k].num; rf = rec[k].fence; out = COMPLETED; goto settlingDoubt
	:: !COUNTS && (OPEN(rec[k].st) && mst != COMPLETED || !OPEN(rec[k].st) && MARKED && mst == UNKNOWN) -> ok = OBSOLETE; goto beginning
	:: else -> printf("instance %d answers from the marker\n", p); mst = KEEP; goto releasing
	fi
}

/* A settlement gives the lock back in the same step, if the lock was taken together with the attempt. */
#if COMBINED
#define SETTLE_HERE(verdict, k, no, under, target, settler, reply, trusted) settleUnlock(verdict, k, no, under, target, settler, reply, trusted)
#else
#define SETTLE_HERE(verdict, k, no, under, target, settler, reply, trusted) settle(verdict, k, no, under, target, settler, reply, trusted)
#endif

proctype Requests(byte p, k, left; bool sweeps) {
	byte f;        /* fence of the lease */
	byte n;        /* number of the attempt that has begun */
	byte rn, rf;   /* the open attempt in doubt; and the one to start over from, if again */
	byte mst, mn, mf; /* the marker found under the lock; later the one to leave */
	byte out, ans; /* the settlement */
	byte v;        /* a verdict */
	bool lost;     /* the lease is no longer trusted */
	bool again;    /* the next attempt starts from rn, rf */
	bool ok;
#if COMBINED
	byte call;     /* the number of the combined call */
#endif
	do
	:: left == 0 -> break
	:: left > 0 ->
	{
		/* Step 3: read the record. */
		atomic {
			left--;
			if
			:: rec[k].st == COMPLETED -> printf("instance %d replays\n", p); acknowledge(k, rec[k].answer); goto done
			:: rec[k].st == UNKNOWN && IN_DOUBT == LEAVE -> printf("instance %d: outcome unknown\n", p); goto done
			:: sweeps && !OPEN(rec[k].st) -> goto done
			:: else
			fi
		}
#if COMBINED
		if
		:: sweeps || !IDLE(rec[k].st) -> goto locking
		:: !sweeps && IDLE(rec[k].st) -> skip
		fi;
		/* Steps 3 to 5 in one call. */
		atomic {
			MAY_START(p, k) && (owner[k] == 0 || !IDLE(rec[k].st)) ->
			STARTED(p, k);
			calls++; call = calls;
			if
			:: beginLocked(v, k, p, call)
			:: MAY_LOSE -> LOSE; keepLate(COMBINED_CALL, call, 0, 0, p, 0, true); undoing = true; v = ERROR
			fi;
			if
			:: v == BEGUN -> f = owner[k]; n = rec[k].num; ok = false; v = 0; printf("instance %d takes the lock and begins attempt %d under fence %d\n", p, n, f)
			:: v == ERROR -> v = 0; goto undo
			:: v == KEPT -> v = 0; left++; goto done
			:: v == LOST || v == STALE -> v = 0; goto done
			fi
		}
		atomic { /* the lease, once more */
			if
			:: HELD -> goto executing
			:: !HELD -> lost = true; goto aborting
			:: HELD && MAY(expiries) -> expiries--; gone[k] = gone[k] | (1 << f); lost = true; goto aborting
			fi
		}
undo:		/* undoOffered: take the lock by its owner. */
		atomic {
#ifdef MUTANT_NOT_UNDONE
			undoing = false; goto done;
#endif
			if
			:: owner[k] == 0 || lockedBy[k] == call ->
				if
				:: owner[k] == 0 -> grant(k, p, call)
				:: else -> holder[k] = p
				fi;
				f = owner[k]; unheld[k] = false; printf("instance %d takes the lock of its call, with fence %d\n", p, f)
			:: MAY(stalls) -> stalls--; undoing = false; outage = true; printf("instance %d gets no lock for its undo\n", p); goto undoneLate /* it goes on without one */
			fi
		}
		atomic { /* abortOffered */
			if
			:: !ITS(call) -> abort(k, f, 0, 0); gone[k] = gone[k] | (1 << f)
			:: ITS(call) -> rf = rec[k].fence; abort(k, rf, 0, 0); gone[k] = gone[k] | (1 << rf)
			fi;
			printf("instance %d undoes its call\n", p);
			rf = 0
		}
		atomic { /* the next holder may have marked the attempt as unknown */
			if
			:: rec[k].st == UNKNOWN && ITS(call) && rec[k].fence != f -> n = rec[k].num; rf = rec[k].fence; settle(v, k, n, rf, RELEASED, rf, 0, false)
			:: else
			fi;
			v = KEEP; release(k, f, v, v, v); v = 0; n = 0; rf = 0
		}
#ifdef MUTANT_NO_SECOND_LOOK
		atomic { undoing = false; goto done }
#endif
		atomic { /* comesAgain: a look after the last moment */
			(late.op != COMBINED_CALL || late.past) ->
			if
			:: ITS(call) && OPEN(rec[k].st) -> goto withoutLock
			:: else -> undoing = false; goto done
			fi
		}
undoneLate:	/* The lock of the call is over, and no copy comes any more. */
		atomic { lockedBy[k] != call && (late.op != COMBINED_CALL || late.past) -> skip }
withoutLock:	/* undoWithoutLock */
		atomic {
			if
			:: ITS(call) && OPEN(rec[k].st) -> rf = rec[k].fence; abort(k, rf, 0, 0); gone[k] = gone[k] | (1 << rf)
			:: else
			fi
		}
		atomic {
			if
			:: rec[k].st == UNKNOWN && ITS(call) -> n = rec[k].num; rf = rec[k].fence; settle(v, k, n, rf, RELEASED, rf, 0, false)
			:: else
			fi;
			v = 0; n = 0; rf = 0; undoing = false; goto done
		}
locking:
#endif
		/* Step 4: take the lock, and see the marker. */
		atomic {
			owner[k] == 0 && MAY_START(p, k) ->
			STARTED(p, k);
			czxid[k]++; f = czxid[k]; owner[k] = f; holder[k] = p;
			printf("instance %d takes the lock with fence %d\n", p, f);
#ifndef MUTANT_MARKER_NOT_HEEDED
			mst = marker[k].st; mn = marker[k].num; mf = marker[k].fence;
#endif
			if
			:: mst == NONE -> goto beginning
			:: else
			fi
		}
		/* heed: read the record, and compare it with the marker. */
		atomic {
			if
			:: MARKED || COUNTS -> heeded()
			:: else
			fi
		}
		atomic { /* restoreMarked: the record is older than the marker */
			if
			:: true -> printf("instance %d restores attempt %d from its marker\n", p, mn); settle(v, k, mn, mf, mst, mf, 0, HELD);
				if
				:: mst == UNKNOWN && !MARKED && IDLE(rec[k].st) && !COUNTS -> v = 0
				:: else -> heeded()
				fi
			:: MAY_LOSE -> LOSE; keepLate(SETTLE, mn, mf, mst, mf, 0, HELD); mst = KEEP; goto releasing
			fi
		}
		atomic { /* restoreUnderLease: a late Abort has left a later fence than the marker's */
			if
			:: true -> printf("instance %d restores attempt %d from its marker under its own fence\n", p, mn); settle(v, k, mn + 1, f, UNKNOWN, f, 0, HELD)
			:: MAY_LOSE -> LOSE; keepLate(SETTLE, mn + 1, f, UNKNOWN, f, 0, HELD)
			fi;
			v = 0; mst = KEEP; goto releasing
		}
beginning:	/* Step 5: begin the attempt under the lock. A sweeper reads instead. */
		atomic {
			if
			:: sweeps -> v = KEPT
			:: !sweeps -> ok = ALLOWED; begin(v, k, f, rn, rf)
			:: !sweeps && MAY_LOSE -> LOSE; keepLate(BEGIN, rn, f, 0, rf, 0, false); v = ERROR
			fi;
			if
			:: v == LOST || v == STALE -> printf("instance %d is refused\n", p); mst = KEEP; goto releasing
			:: v == ERROR -> goto aborting
			:: v == KEPT -> goto found
			:: else -> n = rec[k].num; printf("instance %d begins attempt %d under fence %d\n", p, n, f)
			fi
		}
		atomic { /* the lease, once more */
			v = 0;
			if
			:: !HELD -> lost = true; ok = false; goto aborting
			:: HELD && mst != NONE && (n <= mn || !ok) -> ok = false; printf("instance %d: the store has lost the marked attempt\n", p); goto aborting
			:: HELD && MAY(expiries) -> expiries--; gone[k] = gone[k] | (1 << f); lost = true; ok = false; goto aborting /* no longer trusted, and the lock is still there */
			:: HELD && !(mst != NONE && (n <= mn || !ok)) -> ok = false
			fi
		}
		if
		:: !MARKERS -> goto executing
		:: else
		fi;
#ifdef MUTANT_NO_MARKER
		goto executing;
#endif
		atomic { /* markBegun */
			if
			:: owner[k] == f -> marker[k].st = UNKNOWN; marker[k].num = n; marker[k].fence = f
			:: owner[k] != f -> lost = true; goto neverRan
#ifdef MUTANT_MARKER_NOT_ACKNOWLEDGED
			:: owner[k] == f && MAY(replies) -> replies--
#else
			:: owner[k] == f && MAY(replies) -> replies--; goto neverRan /* not applied */
			:: owner[k] == f && MAY(replies) -> replies--; marker[k].st = UNKNOWN; marker[k].num = n; marker[k].fence = f; goto neverRan
#endif
			fi
		}
		atomic { /* the lease, once more */
			if
			:: !HELD -> lost = true; goto neverRan
			:: else
			fi
		}
executing:	/* Step 6: run the handler. */
		atomic {
			PROMISE(owner[k] != f || applied[k] == 0 || MAY_REPEAT, "a handler runs although the effect happened");
			if
			:: true -> effect(ok, k, f);
				if
				:: ok -> out = COMPLETED; ans = f; printf("instance %d: the effect happens\n", p)
				:: else -> out = UNKNOWN; printf("instance %d: the resource refuses the effect\n", p)
				fi
			:: MAY(effects) -> effects--; effect(ok, k, f); out = UNKNOWN; printf("instance %d: the effect happens without an answer\n", p)
			:: MAY(effects) && !lateEffect.sent -> effects--; lateEffect.sent = true; lateEffect.at = k; lateEffect.fence = f;
				out = UNKNOWN; printf("instance %d: the effect is on its way\n", p)
			:: !quiet -> out = RELEASED; printf("instance %d: no effect\n", p)
			fi;
			ok = false;
			if
			:: out == RELEASED && again -> out = UNKNOWN /* conclude: the earlier attempt is in doubt */
			:: else
			fi
#ifdef MUTANT_RELEASE_BEFORE_SETTLE
			; v = KEEP; release(k, f, v, v, v); v = 0
#endif
		}
settling:	/* Step 7: settle the attempt. The engine tries until the store answers. */
		atomic {
			if
			:: !HELD -> lost = true
			:: else
			fi;
			if
			:: MAY_LOSE -> LOSE; keepLate(SETTLE, n, f, out, f, ans, !lost); goto settling
			:: SETTLE_HERE(v, k, n, f, out, f, ans, !lost);
				printf("instance %d settles attempt %d as %d: %d\n", p, n, out, v);
				if
				:: rec[k].st == COMPLETED -> acknowledge(k, rec[k].answer)
				:: else
				fi;
				/* run.mark */
				if
				:: !lost && !(rec[k].num == n && rec[k].fence == f) -> markFrom(out, n, f)
				:: else -> markFrom(rec[k].st, rec[k].num, rec[k].fence)
				fi;
				goto releasing
			fi
		}
neverRan:	/* The marker was not acknowledged, so the handler did not run. */
		atomic {
			ans = 0;
			if
			:: again -> out = UNKNOWN
			:: else -> out = RELEASED
			fi;
			goto settling
		}
aborting:	/* undo: the engine tries until the store answers, or gives up. */
		atomic {
			if
			:: MAY_LOSE -> LOSE; keepLate(ABORT, rn, f, 0, rf, 0, false); goto aborting
			:: MAY(stalls) -> stalls--; printf("instance %d gives the lock back before its Begin is undone\n", p); /* no answer for the settle time-out */
				gone[k] = gone[k] | (1 << f);
				if
				:: ok -> release(k, f, NONE, 0, 0)
				:: else -> v = KEEP; release(k, f, v, v, v); v = 0
				fi;
				lost = true; goto aborting
			:: MAY(stalls) -> stalls--; printf("instance %d leaves its Begin as it is\n", p);
				gone[k] = gone[k] | (1 << f); mst = KEEP;
				if
				:: ok -> ok = false; mst = NONE
				:: else
				fi;
				mn = 0; mf = 0; goto releasing
			:: abort(k, f, rn, rf); gone[k] = gone[k] | (1 << f); printf("instance %d aborts its Begin\n", p)
			fi;
			v = mn != 0; mst = KEEP; mn = 0; mf = 0;
			if
			:: ok -> ok = false; mst = NONE
			:: else
			fi;
			if
			:: owner[k] == f && !lost || again || v -> v = 0; goto releasing
			:: else
			fi
		}
		atomic { /* the next holder may have marked the attempt as unknown, and it never ran */
			if
			:: rec[k].st == UNKNOWN && rec[k].fence == f -> n = rec[k].num; settle(v, k, n, f, RELEASED, f, 0, false)
			:: else
			fi;
			v = 0;
			goto releasing
		}
found:		/* The record did not let an attempt start. What follows in this step is the engine's own. */
		atomic {
			v = 0; again = false; rn = rec[k].num; rf = rec[k].fence;
			if
			:: rec[k].st == COMPLETED -> printf("instance %d replays\n", p); acknowledge(k, rec[k].answer);
				markFrom(COMPLETED, rn, rf); goto releasing
			:: IDLE(rec[k].st) && !sweeps -> rn = 0; rf = 0; ok = OBSOLETE; goto beginning /* it changed after Begin had read it */
			:: IDLE(rec[k].st) && sweeps || rf >= f || rec[k].st == UNKNOWN && IN_DOUBT == LEAVE || sweeps && IN_DOUBT == AGAIN ->
				markFrom(rec[k].st, rn, rf); goto releasing
			:: else ->
				PROMISE(rec[k].st != PENDING || (gone[k] & (1 << rf)) || lossy, "an attempt is interrupted although its holder lives");
				if
				:: IN_DOUBT == AGAIN -> again = true; goto beginning
				:: IN_DOUBT == LEAVE -> out = UNKNOWN; goto settlingDoubt
				:: else
				fi
			fi
		}
		atomic { /* ask the resolver */
			if
			:: look(out, k, f)
			:: MAY(effects) -> effects--; out = UNKNOWN
			fi;
			if
			:: out == COMPLETED -> ans = applied[k]
			:: else
			fi;
			if
			:: out == UNKNOWN && rec[k].st == UNKNOWN -> markFrom(UNKNOWN, rn, rf); goto releasing
			:: else
			fi
		}
settlingDoubt:	/* settleAs */
		atomic {
			if
			:: !HELD -> lost = true; mst = KEEP; goto releasing
			:: HELD -> settle(v, k, rn, rf, out, f, ans, REPAIRS(out)); printf("instance %d settles attempt %d in doubt as %d: %d\n", p, rn, out, v)
			:: HELD && MAY_LOSE -> LOSE; keepLate(SETTLE, rn, rf, out, f, ans, REPAIRS(out)); mst = KEEP; goto releasing
			fi;
			v = 0; ans = 0; out = 0; rn = 0; rf = 0;
			if
			:: rec[k].st == COMPLETED -> acknowledge(k, rec[k].answer); markFrom(COMPLETED, rec[k].num, rec[k].fence); goto releasing
			:: IDLE(rec[k].st) && !sweeps -> ok = OBSOLETE; goto beginning
			:: else -> markFrom(rec[k].st, rec[k].num, rec[k].fence); goto releasing
			fi
		}
releasing:	/* Step 8: release the lock, and leave the marker. */
		atomic { release(k, f, mst, mn, mf); printf("instance %d releases the lock\n", p) }
done:		skip
	} unless {
		d_step { p < INSTANCES && crashed[p * KEYS + k] -> crashed[p * KEYS + k] = false }
	};
	d_step { f = 0; n = 0; rn = 0; rf = 0; mst = 0; mn = 0; mf = 0; out = 0; ans = 0; v = 0; lost = false; again = false; ok = false }
	od;
	atomic { STARTED(p, k); finished++ }
}
