/* The protocol of a key: engine, lock, markers, token store and resource. README.md says what
 * the model leaves out, and engine.pml which function each step stands for. runs.txt lists the runs.
 *
 * Settings, by -D:
 *   KEYS        keys
 *   INSTANCES   service instances. Each one has a session, and handles a request for each key
 *   REQUESTS    requests for each key at each instance
 *   IN_DOUBT    what a route does in doubt: ASK (a resolver), LEAVE (unknown) or AGAIN
 *   MARKERS     durable markers: 0 or 1
 *   COMBINED    lock and record of a key are in one place, and an idle key takes both in one call: 0 or 1. The lock has
 *               no markers then
 *   FENCED      the resource checks fences: 0 or 1
 *   CRASHES, EXPIRIES, REPLIES, EFFECTS, WIPES, FAILOVERS
 *               how many instances crash, sessions end under a living instance, replies of the
 *               store, the lock service and the resource are lost, and stores lose their data
 *   STALLS      how often an engine gets no answer to an Abort for so long that it gives the lock back
 *               first, or leaves the Begin as it is
 *   FAULTS      how many of these happen at most, taken together
 */
#ifndef KEYS
#define KEYS 1
#endif
#ifndef INSTANCES
#define INSTANCES 2
#endif
#ifndef REQUESTS
#define REQUESTS 1
#endif
#ifndef IN_DOUBT
#define IN_DOUBT ASK
#endif
#ifndef COMBINED
#define COMBINED 0
#endif
#ifndef MARKERS
#define MARKERS (!COMBINED)
#endif
#ifndef FENCED
#define FENCED 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef REPLIES
#define REPLIES 1
#endif
#ifndef EFFECTS
#define EFFECTS 1
#endif
#ifndef WIPES
#define WIPES 0
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif
#ifndef STALLS
#define STALLS 0
#endif

#ifndef FAULTS
#define FAULTS 255
#endif

#define ASK   0
#define LEAVE 1
#define AGAIN 2

#define WORKERS (KEYS * INSTANCES)
#define CALLS (WORKERS * REQUESTS * 2 + 3)
#define ITS_AT(k, call) (rec[k].st != NONE && (nonces[call] & (1 << rec[k].fence)))

/* A promise that does not hold stops the run. run.sh looks for its text in the replay. */
#define PROMISE(holds, text) \
	if \
	:: holds \
	:: else -> printf("BROKEN: "); printf(text); printf("\n"); assert(false) \
	fi

/* The faults that may still happen. */
byte crashes = CRASHES;
byte expiries = EXPIRIES;
byte replies = REPLIES;
byte effects = EFFECTS;
byte wipes = WIPES;
byte failovers = FAILOVERS;
byte stalls = STALLS;

bool crashed[WORKERS]; /* their instance has, and they do not know */
#define SPENT (CRASHES + EXPIRIES + REPLIES + EFFECTS + WIPES + FAILOVERS + STALLS - crashes - expiries - replies - effects - wipes - failovers - stalls)
#define MAY(fault) (fault > 0 && SPENT < FAULTS)

/* Instances are all alike. So the model looks only at the order in which instance 0 takes its
 * first lock of key 0 before instance 1, and so on. */
bool started[INSTANCES];
#define MAY_START(p, k) (p == 0 || p == INSTANCES || k > 0 || started[p - 1])
#define STARTED(p, k) if :: k == 0 && p < INSTANCES -> started[p] = true :: else fi

byte finished; /* workers without a request left */
bool quiet;    /* faults have stopped, and all requests are over */
bool over;     /* everything is */

/* A route that runs again in doubt may repeat its effect, and so may a service without markers
 * after an operator has accepted a loss. */
#define MAY_REPEAT (IN_DOUBT == AGAIN || accepted && !MARKERS)

#include "store.pml"
#include "lock.pml"
#include "resource.pml"
#include "engine.pml"
#include "faults.pml"

init {
	byte k, w;
	atomic {
		run Faults();
		do
		:: w < WORKERS -> run Requests(w / KEYS, w % KEYS, REQUESTS, false); w++
		:: else -> break
		od;
	}
	/* Once faults have stopped, a request runs and the sweeper passes. */
	atomic {
		finished == WORKERS && late.op == NOTHING && !lateEffect.sent && !orphans() && !lost_data -> quiet = true;
		crashes = 0; expiries = 0; replies = 0; effects = 0; wipes = 0; failovers = 0; stalls = 0;
		finished = 0; w = 0; k = 0
	}
	do
	:: k < KEYS ->
		run Requests(INSTANCES, k, 1, false);
		finished == 2 * k + 1 -> run Requests(INSTANCES, k, 1, true);
		finished == 2 * k + 2 -> k++
	:: else -> break
	od;
	atomic {
		k = 0;
		do
		:: k < KEYS ->
			PROMISE(owner[k] == 0, "a lock is left");
			PROMISE(rec[k].st != PENDING, "an attempt stays pending");
			if
			:: IN_DOUBT == ASK -> PROMISE(rec[k].st != UNKNOWN, "the resolver is asked, and the outcome stays unknown")
			:: else
			fi;
			PROMISE(acked[k] == 0 || lossy || rec[k].st == COMPLETED && rec[k].answer == acked[k], "an acknowledged answer is lost");
			k++
		:: else -> break
		od;
		k = 0;
		over = true
	}
}
