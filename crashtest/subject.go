package crashtest

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// Subject is a service to test, with a client and a ledger. Serve, Request and Effects are required.
type Subject struct {
	// Setup is called once before everything, in the process of the test. It makes what all processes share, such as a
	// database, and returns what Serve reads with [Env.Setting].
	Setup func(tb testing.TB) map[string]string

	// Serve is the service. It runs in processes of its own, serves on [Env.Listen] until ctx ends, and uses
	// drivers that env has wrapped.
	Serve func(ctx context.Context, env *Env) error

	// Request sends the request of a call and returns its answer. The key is the same for each repeat. An error means
	// that no answer came. [Send] does it over HTTP.
	Request func(ctx context.Context, c Call) (Answer, error)

	// Effects counts in the ledger what the operation with this key has done. It runs in the process of the test.
	Effects func(ctx context.Context, key string) (int, error)

	// OtherEffects count at other systems, such as a bank, by their names. They have to fit the answer as Effects do.
	OtherEffects map[string]func(ctx context.Context, key string) (int, error)

	// Restart has a function for each server that the kit may restart. It returns when the server answers again. Its error fails the case.
	Restart map[string]func(ctx context.Context) error

	// Lease, Session and ClientTimeout are for the service and its client, so that a test needs no minutes. The
	// default is 2 s for the first two and 1 s for the last, which grows after three tries. Serve reads them from its Env.
	Lease, Session, ClientTimeout time.Duration

	// Budget is how long a client repeats a request without a final answer, 20 s by default. It begins when a restarted server is back.
	Budget time.Duration

	// OneInstance says that two processes of the service cannot run at once. Cases then run one after the other.
	OneInstance bool

	// Short leaves out all faults but one of each class, as go test -short does.
	Short bool

	// Faults limits the faults. By default there are all of them.
	Faults []Fault

	// Parallel is how many cases run at once. The default is three for each processor, because most cases wait. Different keys
	// should change different rows, so that cases do not wait for each other.
	Parallel int
}

// Call is one request of a client.
type Call struct {
	Addr  string // HOST:PORT of the instance
	Key   string // of the operation, the same for each repeat
	Other bool   // the request has to differ from the usual one in its body, with the same key
}

// URL is a URL of the instance.
func (c Call) URL(path string) string { return "http://" + c.Addr + path }

// Outcome is what an answer tells its client.
type Outcome int

// The outcomes. An answer without one gets it from its status, as HTTP defines that: 2xx is a success, and 408, 409,
// 425, 429, 499 and 5xx ask for another try. A problem with the code outcome-unknown, or with may_have_happened, is in
// doubt. Anything else is a refusal.
const (
	ByStatus Outcome = iota
	Again            // not final: the client sends the request again
	Success          // final: the effect is there
	Refusal          // final: there is no effect, and there will be none
	InDoubt          // nobody knows, and the client is told so
)

func (o Outcome) String() string {
	return [...]string{"by status", "again", "success", "refusal", "in doubt"}[o]
}

// Answer is the answer to a call. Answers are the same if Status and Body are, so Request leaves out of Body what may
// differ in a replay.
type Answer struct {
	Status  int
	Body    string
	Header  http.Header // the kit reads Retry-After
	Outcome Outcome     // set by Request if it knows better than the status
}

// withDefaults fills in what is not set.
func (s Subject) withDefaults(procs int) Subject {
	setDefault(&s.Lease, 2*time.Second)
	setDefault(&s.Session, 2*time.Second)
	setDefault(&s.ClientTimeout, time.Second)
	setDefault(&s.Budget, 20*time.Second)
	setDefault(&s.Parallel, 3*procs)
	if s.OneInstance {
		s.Parallel = 1
	}
	s.Short = s.Short || testing.Short()
	return s
}

func setDefault[T int | time.Duration](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

// late is longer than any lease and time-out.
func (s Subject) late() time.Duration { return max(s.Lease, s.Session, s.ClientTimeout) + time.Second }
