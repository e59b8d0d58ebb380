/* The token store: tokenstore/redis/lua. Each script is one step.
 *
 * An attempt is a number, a fence and a nonce. A nonce belongs to a lease, as a fence does. So
 * the fence stands for both here.
 */

/* States of a record. A record that was never there has the state NONE. */
#define NONE      0
#define PENDING   1
#define UNKNOWN   2
#define COMPLETED 3
#define RELEASED  4

#define OPEN(st) ((st) == PENDING || (st) == UNKNOWN)
#define IDLE(st) ((st) == NONE || (st) == RELEASED)

typedef Record {
	byte st;
	byte num;    /* of the attempt */
	byte fence;  /* of the attempt */
	byte by;     /* the fence of the lease that settled it: the ID of the settlement */
	byte answer; /* of a completed attempt; 0: omitted */
	bool again   /* pending, and the attempt started from one in doubt */
}

Record rec[KEYS];
Record replica[KEYS]; /* the records as a replica has them that will be promoted */
bool replicated;      /* the replica has got its last write */
bool lost_data;       /* the incarnation is another one, and no operator has accepted that */
bool accepted;        /* an operator has accepted a loss */
bool lossy;           /* the store has lost writes */

byte acked[KEYS];     /* the stored answer that a client got first; 0: none */
short barred[KEYS];   /* fences that an Abort has left, so that their Begin is refused: bits */

/* Verdicts of the scripts. */
#define BEGUN   1
#define KEPT    2
#define STALE   3
#define LOST    4
#define SETTLED 5
#define ERROR   6 /* no answer */

/* A request that is on its way after its sender has given it up. */
#define NOTHING 0
#define BEGIN   1
#define SETTLE  2
#define ABORT   3
#define COMBINED_CALL 4
typedef Late { byte op; byte at; byte num; byte fence; byte by; byte into; byte told; bool safe
#if COMBINED
	; bool past /* the last moment of the call is over */
#endif
}
Late late;

inline clear(r) { r.st = NONE; r.num = 0; r.fence = 0; r.by = 0; r.answer = 0; r.again = false }

/* begin.lua. It starts an attempt under fence f, from the open attempt overNum, overFence if
 * overFence is not 0. */
inline begin(verdict, k, under, overNum, overFence) {
	if
#ifndef MUTANT_LOSS_UNCHECKED
	:: lost_data -> verdict = LOST
#endif
	:: else ->
		if
		:: rec[k].st == PENDING && rec[k].fence == under -> verdict = BEGUN
#ifdef MUTANT_BEGIN_BLIND
		:: rec[k].st != COMPLETED && !(rec[k].st == PENDING && rec[k].fence == under) -> allowBegin(k, under); verdict = BEGUN
		:: rec[k].st == COMPLETED -> verdict = KEPT
#else
#ifndef MUTANT_STALE_BEGIN
		:: rec[k].st != NONE && (under < rec[k].fence || under == rec[k].fence && !OPEN(rec[k].st)) -> verdict = STALE
#endif
		:: else ->
			if
			:: overFence == 0 && IDLE(rec[k].st) -> allowBegin(k, under); verdict = BEGUN
			:: overFence != 0 && OPEN(rec[k].st) && rec[k].num == overNum && rec[k].fence == overFence && under != overFence ->
				allowBegin(k, under); verdict = BEGUN
			:: else -> verdict = KEPT
			fi
#endif
		fi
	fi
}

inline allowBegin(k, under) {
	PROMISE((barred[k] & (1 << under)) == 0 || lossy, "a Begin takes effect after its Abort");
	rec[k].again = OPEN(rec[k].st);
	rec[k].st = PENDING;
	rec[k].num++;
	rec[k].fence = under;
	rec[k].by = 0;
	rec[k].answer = 0
}

/* abort.lua undoes the Begin under fence f. */
inline abort(k, under, overNum, overFence) {
	if
	:: rec[k].st == NONE ->
		if
		:: overFence == 0 -> leaveFence(k, under)
		:: else
		fi
	:: rec[k].st == PENDING && rec[k].fence == under ->
		if
		:: rec[k].again -> leaveUnknown(k, under)
		:: else -> rec[k].num--; leaveFence(k, under)
		fi
	:: else ->
		if
		:: under < rec[k].fence || under == rec[k].fence && !OPEN(rec[k].st) /* a later one is there */
		:: overFence != 0 && OPEN(rec[k].st) && rec[k].num == overNum && rec[k].fence == overFence && under > overFence ->
			rec[k].num++; leaveUnknown(k, under)
		:: overFence == 0 && IDLE(rec[k].st) && under > rec[k].fence -> leaveFence(k, under)
		:: else
		fi
	fi
}

inline leaveFence(k, under) {
	rec[k].st = RELEASED; rec[k].by = 0; rec[k].again = false;
	barred[k] = barred[k] | (1 << under);
#ifndef MUTANT_ABORT_LEAVES_NO_FENCE
	rec[k].fence = under
#endif
}

inline leaveUnknown(k, under) {
	rec[k].st = UNKNOWN; rec[k].fence = under; rec[k].by = 0; rec[k].again = false;
	barred[k] = barred[k] | (1 << under)
}

/* Whether settle may write a record anew that is of another attempt. */
#ifdef MUTANT_REPAIR_BLIND
#define OLDER(k, n, f) (rec[k].st != COMPLETED)
#else
#define OLDER(k, n, f) (rec[k].st != COMPLETED && rec[k].fence < f && (IDLE(rec[k].st) || rec[k].num < n))
#endif
#define MAY_REPAIR(target, trusted) ((trusted) || (target) != RELEASED)

#ifdef MUTANT_SETTLE_ANY
#define SAME(k, n, f) (rec[k].st != NONE && (OPEN(rec[k].st) || rec[k].num == (n) && rec[k].fence == (f)))
#else
#define SAME(k, n, f) (rec[k].st != NONE && rec[k].num == (n) && rec[k].fence == (f))
#endif

/* settle.lua settles attempt n under fence f. by names the settlement. */
inline settle(verdict, k, no, under, target, settler, reply, trusted) {
	if
	:: SAME(k, no, under) ->
		if
		:: rec[k].by == settler && rec[k].st == target -> verdict = SETTLED
		:: OPEN(rec[k].st) -> write(k, rec[k].num, rec[k].fence, target, settler, reply); verdict = SETTLED
#ifdef MUTANT_SETTLE_OVERTURNS
		:: !OPEN(rec[k].st) && !(rec[k].by == settler && rec[k].st == target) -> write(k, no, under, target, settler, reply); verdict = SETTLED
#endif
		:: else -> verdict = KEPT
		fi
	:: else ->
		if
		:: MAY_REPAIR(target, trusted) && (rec[k].st == NONE || OLDER(k, no, under)) -> write(k, no, under, target, settler, reply); verdict = SETTLED
		:: else -> verdict = KEPT
		fi
	fi
}

inline write(k, no, under, target, settler, reply) {
	PROMISE(rec[k].st != COMPLETED, "a completed record is changed");
	PROMISE(target != RELEASED || applied[k] == 0 || lossy, "a key is released although its effect happened");
	rec[k].num = no;
	rec[k].fence = under;
	rec[k].st = target;
	rec[k].by = settler;
	rec[k].answer = reply;
	rec[k].again = false;
	if
	:: target == RELEASED && lossy == 0 -> dead[k] = dead[k] | (1 << under)
	:: else
	fi
}

/* A client reads the stored answer. */
inline acknowledge(k, told) {
	PROMISE(acked[k] == 0 || acked[k] == told || lossy, "an acknowledged answer changes");
	PROMISE(applied[k] == 0 || told == 0 || told == applied[k] || MAY_REPEAT, "a client is told another outcome than the one that happened");
	if
	:: acked[k] == 0 -> acked[k] = told
	:: else
	fi
}
