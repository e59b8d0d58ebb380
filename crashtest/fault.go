package crashtest

import "slices"

// Fault is what happens at a point.
type Fault string

// The faults.
const (
	KilledBefore  Fault = "killed before"    // the process is killed before the call
	KilledAfter   Fault = "killed after"     // the process is killed when the call has been answered
	AnswerLost    Fault = "answer lost"      // the call took effect, its connection breaks, and its caller gets an error
	AnswerLate    Fault = "answer late"      // the answer takes longer than the lease and the client's time-out
	ConnectionCut Fault = "connection cut"   // the connection breaks before the call is sent
	Stopped       Fault = "stopped"          // the process is stopped before the call, and continued past its lease
	Duplicate     Fault = "duplicate"        // the same request arrives before the call, at this process and another one
	OtherBody     Fault = "other body"       // a request with the same key and another body arrives there
	Restarted     Fault = "server restarted" // a server is restarted before the call
)

// Repeated is no fault: the same request comes again after its answer. It is tried first, and if it fails, nothing else is.
const Repeated Fault = "repeated"

// AllFaults are the faults in the order of the report.
var AllFaults = []Fault{KilledBefore, KilledAfter, AnswerLost, AnswerLate, ConnectionCut, Stopped, Duplicate, OtherBody, Restarted}

// shortFaults are one of each class: the process dies, an answer is missing, the process pauses, requests meet, and a
// server is away.
var shortFaults = []Fault{KilledAfter, AnswerLost, Stopped, Duplicate, Restarted}

// atMarks are the faults that need no call.
var atMarks = []Fault{KilledBefore, Stopped, Duplicate, OtherBody, Restarted}

// at are the faults to try at a point.
func (s Subject) at(p PointInfo) (faults []Fault) {
	for _, f := range AllFaults {
		chosen := len(s.Faults) == 0 || slices.Contains(s.Faults, f)
		// A mark has no "after", so its one kill belongs to a short run too.
		short := slices.Contains(shortFaults, f) || p.Mark && f == KilledBefore
		if chosen && (!s.Short || short || len(s.Faults) > 0) && (!p.Mark || slices.Contains(atMarks, f)) {
			faults = append(faults, f)
		}
	}
	return faults
}

// leftOut is why a fault cannot be tried, or "".
func (s Subject) leftOut(f Fault) string {
	switch {
	case f == Restarted && len(s.Restart) == 0:
		return "Subject.Restart does not say how to restart a server"
	case f == Stopped && !canStop:
		return "this platform cannot stop a process (SIGSTOP)"
	}
	return ""
}
