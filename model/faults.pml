/* Crashes, ended sessions, late messages and lost data. */

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
			:: else -> owner[k] = 0; holder[k] = 0
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
}

proctype Faults() {
	byte k, v;
	bool ok;
	do
	/* A crash, or a pause for longer than the session. */
	:: d_step { MAY(crashes) && owner[0] != 0 && holder[0] != NOBODY -> crashes--;
		printf("the instance %d crashes\n", holder[0]); v = holder[0]; endSession(v, true); v = 0 }
	:: d_step { MAY(expiries) && owner[0] != 0 && holder[0] != NOBODY -> expiries--;
		printf("the session of instance %d ends, which is paused\n", holder[0]); v = holder[0]; endSession(v, false); v = 0 }
	:: d_step { owner[0] != 0 && holder[0] == NOBODY -> printf("the lock of a crashed instance ends with its session\n");
		owner[0] = 0; holder[0] = 0 }
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
	:: d_step { late.op == SETTLE -> printf("a late Settle of attempt %d under fence %d arrives\n", late.num, late.fence);
		settle(v, late.at, late.num, late.fence, late.into, late.by, late.told, late.safe); dropLate(); v = 0 }
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
