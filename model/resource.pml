/* The resource on which a handler has its effect, such as the ledger of a bank. */

byte highest[KEYS]; /* fence that the resource has seen */
byte applied[KEYS]; /* the fence of the attempt whose effect happened; 0: none */
short dead[KEYS];   /* fences of attempts that were decided to have had no effect: bits */

typedef LateEffect { bool sent; byte at; byte fence }
LateEffect lateEffect; /* on its way after its handler has given it up */

#if FENCED && !defined(MUTANT_NO_FENCE_CHECK)
#define ADMITS(k, f) ((f) >= highest[k])
#else
#define ADMITS(k, f) true
#endif

/* effect is the transaction that moves the money. */
inline effect(ok, k, under) {
	if
	:: ADMITS(k, under) ->
		PROMISE(applied[k] == 0 || MAY_REPEAT, "a key has a second effect");
		PROMISE((dead[k] & (1 << under)) == 0, "an attempt has an effect after it was decided to have none");
		highest[k] = under;
		if
		:: applied[k] == 0 -> applied[k] = under
		:: else
		fi;
		ok = true
	:: else -> ok = false
	fi
}

/* look is the resolver. It raises the fence and looks, in one transaction. */
inline look(verdict, k, under) {
	if
	:: under < highest[k] -> verdict = UNKNOWN
	:: else ->
#ifndef MUTANT_RESOLVER_ONLY_LOOKS
		highest[k] = under;
#endif
		if
		:: applied[k] -> verdict = COMPLETED
		:: else -> verdict = RELEASED
		fi
	fi
}
