package crashtest

import (
	"context"
	"fmt"
)

// judge compares the answers of a case with the ledger. last is the client's last answer.
func (r *runner) judge(ctx context.Context, c *Case, h *history, main client, last reply) {
	// One more repeat at each process, because the answer has to stay the same.
	if last.final() {
		again := main
		again.name = "client, once more"
		first := again.untilFinalFrom(ctx, 1)
		second := again.untilFinalFrom(ctx, 2)
		if !first.final() || !second.final() {
			last = second
		}
	}
	wanted := 0
	if h.told(Success) {
		wanted = 1
	}
	counted, err := r.countUntil(ctx, h.key, wanted)
	if err != nil {
		c.failedf("no count", "%v", err)
		return
	}
	h.notef("%v", counted)
	if why, cell := h.contradiction(counted); why != "" {
		c.failedf(cell, "%s", why)
		return
	}
	switch {
	case last.Outcome == InDoubt:
		c.Result = Doubt
	case !last.final():
		c.failedf("no answer", "no final answer within %v, the last was %v", r.Budget, last)
		return
	case h.told(Success):
		c.Result = Once
	default:
		c.Result = None
	}
	c.Cell = string(c.Result)
}

// told reports whether an answer had the outcome.
func (h *history) told(o Outcome) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.replies {
		if a.Outcome == o {
			return true
		}
	}
	return false
}

// contradiction says where the answers contradict each other or the ledger, in a sentence and in two words.
func (h *history) contradiction(counted counts) (why, cell string) {
	for _, e := range counted {
		if e.n > 1 {
			return fmt.Sprintf("%v for one operation", counted), cellOf(e)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// The usual request and one with another body compete for the key. One of them may win.
	var success, refusal [2]*reply
	var doubtAfter *reply
	for i, a := range h.replies {
		which := 0
		if a.other {
			which = 1
		}
		earlier := [3]*reply{}
		switch a.Outcome {
		case Success:
			earlier[0], success[which] = success[which], &h.replies[i]
		case Refusal:
			earlier[0], refusal[which] = refusal[which], &h.replies[i]
		case InDoubt:
			if success[which] != nil || refusal[which] != nil {
				doubtAfter = &h.replies[i]
			}
		}
		if e := earlier[0]; e != nil && (e.Status != a.Status || e.Body != a.Body) {
			return fmt.Sprintf("two final answers differ: %v and %v", e, a), "differs"
		}
	}
	switch {
	case success[0] != nil && success[1] != nil:
		return fmt.Sprintf("requests with different bodies were both told of success: %v and %v", success[0], success[1]), "both told"
	case success[0] != nil && refusal[0] != nil:
		return fmt.Sprintf("two final answers differ: %v and %v", success[0], refusal[0]), "differs"
	case doubtAfter != nil:
		return fmt.Sprintf("a final answer was given before, and then %v", doubtAfter), "differs"
	case (success[0] != nil || success[1] != nil) && counted.any(func(n int) bool { return n == 0 }):
		return fmt.Sprintf("a client was told of success, and there are %v", counted), "untrue"
	case success[0] == nil && success[1] == nil && refusal[0] != nil && counted.any(func(n int) bool { return n > 0 }):
		return fmt.Sprintf("the client was refused, and there are %v", counted), "untrue"
	}
	return "", ""
}

func cellOf(e effects) string {
	if e.of == "" {
		return fmt.Sprintf("%d EFFECTS", e.n)
	}
	return fmt.Sprintf("%d AT %s", e.n, e.of)
}
