/* ZooKeeper: lock/zookeeper. The lock of a key, and its marker. A pinned write is one step that
 * has no effect after the end of the session, and its outcome is known after the barrier.
 */

byte owner[KEYS];  /* the fence of the lease that has the lock; 0: the lock is free */
byte holder[KEYS]; /* the instance that has it */
byte czxid[KEYS];  /* the last fence. Fences of different keys are never compared */
short gone[KEYS];  /* fences of leases that a crash, a session's end or an Abort has ended: bits */

#define NOBODY 255 /* the holder has crashed, and its session has not ended yet */

typedef Marker { byte st; byte num; byte fence } /* st is NONE, UNKNOWN or COMPLETED */
Marker marker[KEYS];

#if KEYS == 1
#define orphans() (owner[0] != 0)
#else
#define orphans() (owner[0] != 0 || owner[1] != 0)
#endif

#if COMBINED
#define FORGET(k) lockedBy[k] = 0; unheld[k] = false
#else
#define FORGET(k) skip
#endif

/* release gives the lock back, and changes the marker in the same transaction. KEEP leaves
 * the marker as it is. */
#define KEEP 9
inline release(k, under, leave, no, since) {
	if
	:: owner[k] == under ->
		owner[k] = 0;
		holder[k] = 0;
		FORGET(k);
		if
		:: !MARKERS || leave == KEEP
		:: else -> marker[k].st = leave; marker[k].num = no; marker[k].fence = since
		fi
	:: else
	fi
}

#if COMBINED
byte calls;          /* combined calls that were made */
byte lockedBy[KEYS]; /* the call that took the lock; 0: another one did */
bool unheld[KEYS];   /* nobody renews the lock, because its call got no answer */
bool outage;         /* an undo has got no lock for the time that the lock of its call lives */
bool undoing;        /* a call without an answer is being undone, and its lock is not over yet */
short nonces[CALLS]; /* the fences under which a call has locked: bits */

/* grant gives a free lock to a call. */
inline grant(k, to, call) {
	czxid[k]++; owner[k] = czxid[k]; holder[k] = to; lockedBy[k] = call;
	nonces[call] = nonces[call] | (1 << owner[k])
}

/* begin_locked.lua: look, lock and begin. */
inline beginLocked(verdict, k, from, call) {
	if
	:: !IDLE(rec[k].st) || ITS_AT(k, call) || owner[k] != 0 -> verdict = KEPT
	:: else ->
		grant(k, from, call);
		begin(verdict, k, owner[k], 0, 0);
		if
		:: verdict == BEGUN -> skip
		:: else -> owner[k] = 0; holder[k] = 0; lockedBy[k] = 0
		fi
	fi
}

/* settle_locked.lua: settle, and give the lock back. */
inline settleUnlock(verdict, k, no, under, target, settler, reply, trusted) {
	settle(verdict, k, no, under, target, settler, reply, (trusted && owner[k] == under));
	if
#ifdef MUTANT_FREES_ANY_LOCK
	:: verdict == SETTLED -> owner[k] = 0; holder[k] = 0; lockedBy[k] = 0
#else
	:: verdict == SETTLED && owner[k] == under -> owner[k] = 0; holder[k] = 0; lockedBy[k] = 0
#endif
	:: else
	fi
}
#endif
