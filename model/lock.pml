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

/* release gives the lock back, and changes the marker in the same transaction. KEEP leaves
 * the marker as it is. */
#define KEEP 9
inline release(k, under, leave, no, since) {
	if
	:: owner[k] == under ->
		owner[k] = 0;
		holder[k] = 0;
		if
		:: !MARKERS || leave == KEEP
		:: else -> marker[k].st = leave; marker[k].num = no; marker[k].fence = since
		fi
	:: else
	fi
}
