package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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

// Only a whole answer without an error says that a write was applied. Every other one is a
// refusal or the end for certain, or it is unknown.
func TestInterpretBelievesOnlyAWholeAnswer(t *testing.T) {
	t.Parallel()
	pin, op := zk.MultiResponse{Stat: &zk.Stat{Mzxid: 7}}, zk.MultiResponse{String: "/made"}
	for name, tt := range map[string]struct {
		answer []zk.MultiResponse
		err    error
		want   Outcome
		cause  error
	}{
		"applied":                {[]zk.MultiResponse{pin, op}, nil, Applied, nil},
		"results, and an error":  {[]zk.MultiResponse{pin, op}, zk.ErrConnectionClosed, Unknown, zk.ErrConnectionClosed},
		"no stat of the pin":     {[]zk.MultiResponse{{}, op}, nil, Unknown, nil},
		"too few results":        {[]zk.MultiResponse{pin}, nil, Unknown, nil},
		"too many results":       {[]zk.MultiResponse{pin, op, op}, nil, Unknown, nil},
		"no results":             {nil, zk.ErrConnectionClosed, Unknown, zk.ErrConnectionClosed},
		"never sent":             {nil, zk.ErrNoServer, Unsent, zk.ErrNoServer},
		"the session is over":    {nil, zk.ErrSessionExpired, Ended, ErrExpired},
		"an empty answer at all": {nil, nil, Unknown, nil},
	} {
		got := interpret(1, tt.answer, tt.err)
		if got.Outcome != tt.want || (got.Err == nil) != (tt.want == Applied) || tt.cause != nil && !errors.Is(got.Err, tt.cause) {
			t.Errorf("%s: interpret() = %+v, want %v because of %v", name, got, tt.want, tt.cause)
		}
		if tt.want == Applied && (got.Zxid != 7 || len(got.Created) != 1 || got.Created[0] != "/made") {
			t.Errorf("%s: interpret() = %+v, want the zxid of the pin and the path", name, got)
		}
	}
}

// Each pause is at least half of a limit and at most the whole, and the limit doubles up to Max.
func TestBackoff(t *testing.T) {
	t.Parallel()
	b := Backoff{First: 100, Max: 1000}
	for i, limit := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if got := b.Next(); got < limit/2 || got > limit {
			t.Errorf("pause %d = %d, want %d to %d", i, got, limit/2, limit)
		}
	}
}

// What the servers refuse for good, what they refuse now, and what says nothing.
func TestKindsOfRefusals(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err                         error
		refusal, answered, definite bool
	}{
		"not permitted":  {notPermittedAt("/a", zk.ErrNoAuth), true, true, true},
		"not known":      {fmt.Errorf("%w: x", errUnknownToServers), true, true, false},
		"ephemeral":      {zk.ErrNoChildrenForEphemerals, true, true, true},
		"bad arguments":  {zk.ErrBadArguments, true, true, true},
		"quota":          {&codeError{"/a", codeQuotaExceeded}, false, true, false},
		"no node":        {zk.ErrNoNode, false, false, true},
		"no connection":  {zk.ErrConnectionClosed, false, false, false},
		"not from there": {errNotConnected, false, false, false},
	} {
		if r, a, d := Refusal(tt.err), Answered(tt.err), Definite(tt.err); r != tt.refusal || a != tt.answered || d != tt.definite {
			t.Errorf("%s: Refusal() = %v, Answered() = %v, Definite() = %v, want %v, %v, %v", name, r, a, d, tt.refusal, tt.answered, tt.definite)
		}
	}
	if got := (&codeError{"/a", codeQuotaExceeded}).Error(); !strings.Contains(got, "/a with code -125: a quota") {
		t.Errorf("Error() = %s", got)
	}
	if got := (&codeError{"/a", -127}).Error(); strings.Contains(got, "quota") {
		t.Errorf("Error() = %s", got)
	}
}

// A refusal names the znode whose ACL decided: the parent for a create or a delete.
func TestRefusalNamesTheZnode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		op    any
		err   error
		is    error
		names string
	}{
		{&zk.CreateRequest{Path: "/a/b"}, zk.ErrNoAuth, ErrNotPermitted, "of /a,"},
		{&zk.DeleteRequest{Path: "/a/b"}, zk.ErrNoAuth, ErrNotPermitted, "of /a,"},
		{&zk.SetDataRequest{Path: "/a/b"}, zk.ErrNoAuth, ErrNotPermitted, "of /a/b,"},
		{&zk.CreateRequest{Path: "/a/b"}, zk.ErrInvalidACL, errUnknownToServers, "create /a/b"},
		{&zk.CreateRequest{Path: "/a/b"}, errors.New("unknown error: -125"), nil, "/a/b with code -125"},
		{&zk.CheckVersionRequest{Path: "/a/b"}, zk.ErrNoAuth, zk.ErrNoAuth, ""},
		{&zk.CreateRequest{Path: "/a/b"}, zk.ErrNodeExists, zk.ErrNodeExists, ""},
	} {
		got := refusalOf(tt.op, tt.err)
		if got == nil || tt.is != nil && !errors.Is(got, tt.is) || !strings.Contains(got.Error(), tt.names) {
			t.Errorf("refusalOf(%T, %v) = %v, want %v with %q", tt.op, tt.err, got, tt.is, tt.names)
		}
	}
	if err := notPermittedAt("/a", notPermittedAt("/b", zk.ErrNoAuth)); strings.Contains(err.Error(), "/a") {
		t.Errorf("notPermittedAt() named a second znode: %v", err)
	}
}
