package session

import (
	"fmt"
	"testing"

	"github.com/go-zookeeper/zk"
)

// The culprit of a Multi is told by its place, not by its code; the pin is the
// exception.
func TestInterpretTellsTheCulpritWhateverItsCode(t *testing.T) {
	t.Parallel()
	code := func(n int) error { return fmt.Errorf("unknown error: %v", zk.ErrCode(n)) }
	notTried := code(codeRuntimeInconsistency)
	ok := &zk.Stat{Mzxid: 7}
	tests := map[string]struct {
		pin  error
		ops  []error
		want Result
	}{
		"quota":                {nil, []error{nil, code(-125), notTried}, Result{Outcome: Refused, Op: 1}},
		"throttled":            {nil, []error{code(-127), notTried}, Result{Outcome: Refused, Op: 0}},
		"a code of the future": {nil, []error{nil, nil, code(-999)}, Result{Outcome: Refused, Op: 2}},
		"a system error":       {nil, []error{code(-1), notTried}, Result{Outcome: Refused, Op: 0}},
		"session moved":        {nil, []error{nil, zk.ErrSessionMoved}, Result{Outcome: Refused, Op: 1}},
		"nobody is named":      {nil, []error{nil, notTried}, Result{Outcome: Unknown}},
		"pin, not tried":       {notTried, []error{notTried}, Result{Outcome: Unknown}},
		"pin, quota":           {code(-125), []error{notTried}, Result{Outcome: Unknown}},
		"pin, a code to come":  {code(-999), []error{notTried}, Result{Outcome: Unknown}},
		"pin, not permitted":   {zk.ErrNoAuth, []error{notTried}, Result{Outcome: Refused, Op: -1}},
		"pin, no member":       {zk.ErrNoNode, []error{notTried}, Result{Outcome: Ended}},
		"nothing went wrong":   {nil, []error{nil, nil}, Result{Outcome: Applied}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := []zk.MultiResponse{{Stat: ok, Error: tt.pin}}
			for _, err := range tt.ops {
				answer = append(answer, zk.MultiResponse{Error: err})
			}
			var first error
			for _, op := range answer {
				if first == nil {
					first = op.Error
				}
			}
			got := interpret(len(tt.ops), answer, first)
			if got.Outcome != tt.want.Outcome || got.Op != tt.want.Op {
				t.Errorf("interpret() = %+v, want %+v", got, tt.want)
			}
		})
	}
}
