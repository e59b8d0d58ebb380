/* The protocol of joined mode: idem/joined.go and tokenstore/sql. The record of a key commits in
 * the transaction of the handler. README.md says what the model leaves out.
 *
 * Settings, by -D:
 *   INSTANCES   service instances, each with REQUESTS requests for the one key
 *   CRASHES, REPLIES, ESCAPES, FAILOVERS
 *               how many instances crash, answers to COMMIT are lost, handlers end their
 *               transaction by themselves, and databases lose their latest commits
 */
#ifndef INSTANCES
#define INSTANCES 3
#endif
#ifndef REQUESTS
#define REQUESTS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REPLIES
#define REPLIES 1
#endif
#ifndef ESCAPES
#define ESCAPES 1
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif

#define PROMISE(holds, text) \
	if \
	:: holds \
	:: else -> printf("BROKEN: "); printf(text); printf("\n"); assert(false) \
	fi

#define NONE      0
#define PENDING   1 /* committed by the handler itself: unknown */
#define COMPLETED 2 /* a success */
#define DECLINED  3 /* completed, with a refusal to keep */
#define UNKNOWN   4

#define NOBODY 0
#define COMMIT 1
#define LEFT   2

/* What the database has committed. */
typedef Database { byte st; byte attempt; byte effects }
Database db;
Database replica;
bool replicated;
bool lossy;

/* The open transactions by their attempts. A transaction takes the key by its first statement,
 * and ends with COMMIT or ROLLBACK. It may outlive its client. */
byte taker;         /* the attempt whose transaction has the key */
bool wrote;         /* its handler has written */
byte orphan;        /* no client waits for it any more: it was asked to COMMIT, or was LEFT */
byte owner;         /* its instance */
byte attempts;      /* that began */

byte acked;         /* the stored outcome that a client got first */
short undone;       /* attempts that were said to be rolled back: bits */

byte crashes = CRASHES;
byte replies = REPLIES;
byte escapes = ESCAPES;
byte failovers = FAILOVERS;
bool crashed[INSTANCES + 1];
byte finished;
bool over;

inline free() { taker = NOBODY; wrote = false; orphan = 0; owner = 0 }

/* The database commits the transaction that has the key. */
inline commit(outcome) {
	PROMISE((undone & (1 << taker)) == 0, "a transaction commits after its client was told that it was rolled back");
	PROMISE(db.st == NONE, "a second attempt commits");
#ifndef MUTANT_RECORD_OUTSIDE
	db.st = outcome; db.attempt = taker;
#endif
	if
	:: wrote -> db.effects++; PROMISE(db.effects == 1, "a key has a second effect")
	:: else
	fi;
	free()
}

inline answer() {
	PROMISE(acked == NONE || acked == db.st || lossy, "an acknowledged answer changes");
	PROMISE((db.st == COMPLETED) == (db.effects == 1) || db.st != COMPLETED && db.st != DECLINED, "record and effect differ");
	if
	:: acked == NONE && db.st != UNKNOWN && db.st != PENDING -> acked = db.st
	:: else
	fi
}

proctype Request(byte p, left) {
	byte a;        /* the attempt */
	byte out;
	do
	:: left == 0 -> break
	:: left > 0 ->
	{
		/* Step 3: read. A record answers the request, or its outcome is unknown. */
		atomic {
			left--;
			if
			:: db.st == PENDING && taker == NOBODY -> db.st = UNKNOWN; printf("instance %d settles an attempt that escaped\n", p); goto done
			:: db.st != NONE && (db.st != PENDING || taker != NOBODY) -> printf("instance %d replays\n", p); answer(); goto done
			:: else
			fi
		}
		/* Step 5: the first statement takes the key. It waits for another transaction, and is
		 * begun anew after that. */
		atomic {
#ifndef MUTANT_KEY_NOT_UNIQUE
			taker == NOBODY ->
#endif
			if
#ifndef MUTANT_INSERT_IGNORES
			:: db.st != NONE -> goto done /* the client asks again */
#endif
			:: else -> attempts++; a = attempts; taker = a; owner = p; printf("instance %d takes the key in attempt %d\n", p, a)
			fi
		}
		/* Step 6: the handler. */
		atomic {
			if
			:: taker != a -> goto done /* the database has ended the transaction: a fail-over */
			:: taker == a -> wrote = true; out = COMPLETED
			:: taker == a -> wrote = true; out = DECLINED
			:: taker == a -> wrote = true; out = NONE /* 5xx, an error, a panic: roll back */
			:: taker == a && escapes > 0 -> escapes--; wrote = true; out = UNKNOWN; printf("the handler of attempt %d commits by itself\n", a);
				db.st = PENDING; db.attempt = a; db.effects++; PROMISE(db.effects == 1, "a key has a second effect"); wrote = false
			fi
		}
		/* Step 7. */
		if
		:: out == NONE || out == DECLINED -> atomic {
				if
				:: taker == a -> free()
				:: else
				fi;
				printf("instance %d rolls attempt %d back\n", p, a);
				undone = undone | (1 << a);
				if
				:: out == NONE -> goto done
				:: else
				fi
			}
			/* rollBackAndRecord: the answer alone, in a new transaction */
			atomic {
				taker == NOBODY ->
				if
				:: db.st == NONE -> db.st = DECLINED; db.attempt = a; printf("instance %d records the refusal of attempt %d\n", p, a)
				:: else
				fi;
				if
				:: db.st != PENDING && db.st != UNKNOWN -> answer()
				:: else
				fi;
				goto done
			}
		:: out == UNKNOWN -> atomic { /* escaped */
				if
				:: db.st == PENDING && db.attempt == a -> db.st = UNKNOWN
				:: else
				fi;
				if
				:: taker == a -> free()
				:: else
				fi;
				printf("instance %d: the outcome of attempt %d is unknown\n", p, a);
				goto done
			}
		:: else
		fi;
		atomic { /* COMMIT */
			if
			:: taker != a -> goto rolledBack
			:: taker == a -> commit(COMPLETED)
			:: taker == a && replies > 0 -> replies--; orphan = COMMIT; printf("no answer to COMMIT of attempt %d\n", a); goto probing
			fi
		}
#ifdef MUTANT_RECORD_OUTSIDE
		atomic {
			if
			:: db.st == NONE -> db.st = COMPLETED; db.attempt = a
			:: else
			fi
		}
#endif
		atomic { printf("instance %d: attempt %d is committed\n", p, a); answer(); goto done }
probing:	/* The probe takes the key, waiting for the transaction, and rolls that back. */
		atomic {
#ifdef MUTANT_PROBE_DOES_NOT_WAIT
			true ->
#else
#ifdef MUTANT_NO_PROBE
			goto rolledBack;
#endif
			taker == NOBODY ->
#endif
			if
			:: db.st == NONE -> goto rolledBack
			:: db.st != NONE && db.st != UNKNOWN && db.st != PENDING -> printf("the probe finds attempt %d\n", db.attempt); answer(); goto done
			:: else -> goto done
			fi
		}
rolledBack:	/* The client is told that nothing happened, and may send the request again. */
		atomic { printf("instance %d says that attempt %d was rolled back\n", p, a); undone = undone | (1 << a) }
done:		skip
	} unless {
		d_step { crashed[p] -> crashed[p] = false }
	};
	atomic { a = 0; out = 0 }
	od;
	finished++
}

/* The database and its faults. */
proctype Faults() {
	do
	:: d_step { crashes > 0 && taker != NOBODY && orphan == 0 && !crashed[owner] -> crashes--; printf("the instance %d crashes\n", owner);
		crashed[owner] = true; orphan = LEFT }
	:: d_step { orphan == LEFT -> printf("the database ends the transaction of a crashed client\n"); free() }
	:: d_step { orphan == COMMIT -> printf("the COMMIT takes effect late\n"); commit(COMPLETED) }
	:: d_step { orphan == COMMIT -> printf("the COMMIT never arrives\n"); free() }
#if FAILOVERS
	:: d_step { failovers > 0 && !replicated -> replicated = true; printf("the replica gets its last commit\n");
		replica.st = db.st; replica.attempt = db.attempt; replica.effects = db.effects }
	:: d_step { failovers > 0 && replicated -> failovers--; lossy = true; printf("the replica is promoted\n");
		db.st = replica.st; db.attempt = replica.attempt; db.effects = replica.effects; replica.st = NONE; replica.attempt = 0; replica.effects = 0; free() }
#endif
	:: d_step { over -> skip } -> break
	od
}

init {
	byte p;
	atomic {
		run Faults();
		do
		:: p < INSTANCES -> run Request(p, REQUESTS); p++
		:: else -> break
		od
	}
	/* Once faults have stopped, one more request comes, and another one. */
	atomic { finished == INSTANCES && taker == NOBODY -> crashes = 0; replies = 0; escapes = 0; failovers = 0; finished = 0; run Request(INSTANCES, 2) }
	atomic {
		finished == 1 ->
		PROMISE(taker == NOBODY, "a transaction stays open");
		PROMISE(db.st != PENDING, "an attempt stays pending");
		PROMISE(db.st != UNKNOWN || escapes < ESCAPES || lossy, "an outcome is unknown although no handler escaped");
		PROMISE(acked == NONE || lossy || acked == db.st, "an acknowledged answer is lost");
		PROMISE(db.st != COMPLETED || db.effects == 1, "a success has no effect");
		PROMISE(db.effects == 0 || db.st == COMPLETED || db.st == UNKNOWN, "an effect has no record");
		over = true
	}
}
