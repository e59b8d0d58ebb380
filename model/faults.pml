/* Crashes, ended sessions, late messages and lost data. */

#ifdef MUTANT_LAST_MOMENT_IGNORED
#define LAST_MOMENT true
#else
#define LAST_MOMENT !late.past
#endif

/* A crash ends the undo of a call that is on its way. */
#if COMBINED
#define CALLER_CRASHES(p) if :: late.op == COMBINED_CALL && late.by == p -> late.safe = false; undoing = false :: late.op != COMBINED_CALL -> undoing = false :: else fi
#else
#define CALLER_CRASHES(p) skip
#endif

/* Each lock of instance p ends, or goes on without its holder. */
inline endSession(p, crash) {
	k = 0;
	do
	:: k < KEYS ->
		if
		:: owner[k] != 0 && holder[k] == p ->
			gone[k] = gone[k] | (1 << owner[k]);
			if
			:: crash -> holder[k] = NOBODY; crashed[p * KEYS + k] = true
			:: else -> owner[k] = 0; holder[k] = 0; FORGET(k)
			fi
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0
}

inline copy(from, into) {
	into.st = from.st; into.num = from.num; into.fence = from.fence; into.by = from.by; into.answer = from.answer; into.again = from.again
}

inline dropLate() {
	late.op = NOTHING; late.at = 0; late.num = 0; late.fence = 0; late.into = 0; late.by = 0; late.told = 0; late.safe = false
#if COMBINED
	; late.past = false
#endif
}

proctype Faults() {
	byte k, v;
	bool ok;
	do
	/* A crash, or a pause for longer than the session. */
	:: d_step { MAY(crashes) && owner[0] != 0 && holder[0] != NOBODY -> crashes--;
		printf("the instance %d crashes\n", holder[0]); v = holder[0]; endSession(v, true); CALLER_CRASHES(v); v = 0 }
	:: d_step { MAY(expiries) && owner[0] != 0 && holder[0] != NOBODY -> expiries--;
		printf("the session of instance %d ends, which is paused\n", holder[0]); v = holder[0]; endSession(v, false); v = 0 }
	:: d_step { owner[0] != 0 && holder[0] == NOBODY -> printf("the lock of a crashed instance ends with its session\n");
		owner[0] = 0; holder[0] = 0; FORGET(0) }
#if KEYS > 1
	:: d_step { MAY(crashes) && owner[1] != 0 && holder[1] != NOBODY && (owner[0] == 0 || holder[0] != holder[1]) -> crashes--;
		printf("the instance %d crashes\n", holder[1]); v = holder[1]; endSession(v, true); v = 0 }
	:: d_step { MAY(expiries) && owner[1] != 0 && holder[1] != NOBODY && (owner[0] == 0 || holder[0] != holder[1]) -> expiries--;
		printf("the session of instance %d ends, which is paused\n", holder[1]); v = holder[1]; endSession(v, false); v = 0 }
	:: d_step { owner[1] != 0 && holder[1] == NOBODY -> printf("the lock of a crashed instance ends with its session\n");
		owner[1] = 0; holder[1] = 0 }
#endif
	/* A message arrives late, or never. */
	:: d_step { late.op == BEGIN -> printf("a late Begin under fence %d arrives\n", late.fence);
		begin(v, late.at, late.fence, late.num, late.by); dropLate(); v = 0 }
	:: d_step { late.op == ABORT -> printf("a late Abort under fence %d arrives\n", late.fence);
		abort(late.at, late.fence, late.num, late.by); dropLate(); v = 0 }
#if COMBINED
	:: d_step { late.op == COMBINED_CALL && !late.past -> printf("the last moment of a call is over\n"); late.past = true }
	:: d_step { late.op == COMBINED_CALL && LAST_MOMENT -> printf("a late call to lock and begin arrives\n");
		beginLocked(v, late.at, late.by, late.num);
		if
		:: v == BEGUN && late.safe -> unheld[late.at] = true
		:: v == BEGUN && !late.safe -> holder[late.at] = NOBODY; gone[late.at] = gone[late.at] | (1 << owner[late.at])
		:: else
		fi;
		dropLate(); v = 0 }
	:: d_step { unheld[0] && owner[0] != 0 && !undoing -> printf("a lock that nobody renews is over\n");
		if
		:: outage -> gone[0] = gone[0] | (1 << owner[0])
		:: else
		fi;
		owner[0] = 0; holder[0] = 0; FORGET(0) }
#endif
	:: d_step { late.op == SETTLE -> printf("a late Settle of attempt %d under fence %d arrives\n", late.num, late.fence);
		SETTLE_HERE(v, late.at, late.num, late.fence, late.into, late.by, late.told, late.safe); dropLate(); v = 0 }
	:: d_step { late.op != NOTHING && finished == WORKERS && !quiet -> printf("a late message never arrives\n"); dropLate() }
	:: d_step { lateEffect.sent -> printf("a late effect under fence %d arrives\n", lateEffect.fence);
		effect(ok, lateEffect.at, lateEffect.fence); ok = false; lateEffect.sent = false; lateEffect.at = 0; lateEffect.fence = 0 }
	:: d_step { lateEffect.sent && finished == WORKERS && !quiet -> printf("a late effect never arrives\n");
		lateEffect.sent = false; lateEffect.at = 0; lateEffect.fence = 0 }
	/* Redis loses everything, and an operator accepts that. */
#if WIPES
	:: d_step { MAY(wipes) -> wipes--; printf("the store loses everything\n"); lossy = true; lost_data = true;
		do
		:: k < KEYS -> clear(rec[k]); k++
		:: else -> break
		od;
		k = 0 }
	:: d_step { lost_data -> printf("an operator accepts the loss\n"); lost_data = false; accepted = true }
#endif
	/* Redis loses its latest writes. */
#if FAILOVERS
	:: d_step { MAY(failovers) && !replicated -> replicated = true; printf("the replica gets its last write\n");
		do
		:: k < KEYS -> copy(rec[k], replica[k]); k++
		:: else -> break
		od;
		k = 0 }
	:: d_step { MAY(failovers) && replicated -> failovers--; printf("the replica is promoted\n"); lossy = true;
		do
		:: k < KEYS -> copy(replica[k], rec[k]); clear(replica[k]); k++
		:: else -> break
		od;
		k = 0; replicated = false }
#endif
	:: d_step { over -> skip } -> break
	od
}
