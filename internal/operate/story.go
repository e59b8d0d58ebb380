package operate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Story tells a person about a record. Each part is a text of one line, or "" if there is
// nothing to tell. The texts may quote stored text, so a caller escapes them for its medium.
type Story struct {
	Age    time.Duration // since the record entered its state, by the store's clock
	Holder string        // whether the holder of an open attempt lives, and which process it is
	Next   string        // what happens by itself
	Settle string        // the command that settles an open attempt
}

// Story puts the facts into words.
func (f *Facts) Story() Story {
	s := Story{Holder: f.holder(), Next: f.next(), Settle: f.settle()}
	since := f.Record.Since()
	if f.Err != nil {
		since = f.Record.Started
	}
	if !since.IsZero() {
		s.Age = max(f.Now.Sub(since), 0).Round(time.Millisecond)
	}
	return s
}

// Alive reports whether the holder of the open attempt still has its lock. known is false if
// that cannot be told.
func (f *Facts) Alive() (alive, known bool) {
	switch f.Lock {
	case LockOfAttempt:
		return true, true
	case LockFree, LockOfOther:
		return false, true
	}
	return false, false
}

// Settleable reports whether a decision of a person would be tried now.
func (f *Facts) Settleable() bool {
	if f.Err != nil || !f.Record.State.Open() || f.Lock == LockOfAttempt {
		return false
	}
	return f.Lock != LockElsewhere || f.Record.State == driver.StateUnknown
}

func (f *Facts) holder() string {
	name, gone := f.Holder.String(), "gone"
	if f.Record.State == driver.StateUnknown {
		gone = "ended" // often in a process that lives
	}
	switch {
	case f.Lock == LockOfAttempt && name == "":
		return "alive: a transaction in the database holds the key"
	case f.Lock == LockOfAttempt:
		return "alive: " + name + " holds the lock"
	case f.Lock == LockOfOther && name == "":
		return gone + ": another process holds the lock now"
	case f.Lock == LockOfOther:
		return gone + ": " + name + " holds the lock now, not for this attempt"
	case f.Lock == LockFree:
		return gone + ": no process holds the lock"
	case f.Lock == LockElsewhere:
		return "not known: its lock is in the domain " + f.Record.Attempt.Fence.Domain + ", which cannot be seen from here"
	case f.Lock == LockUnknown && errors.Is(f.LockErr, errors.ErrUnsupported):
		return "not known: this lock service does not tell who holds a lock"
	case f.Lock == LockUnknown:
		return "not known: the lock service does not answer"
	}
	return ""
}

// runsAgain warns before another run. Nobody but the service knows what its handler does.
const runsAgain = "The next request with the key runs the handler again. If the route charges, that request charges."

func (f *Facts) next() string {
	rec := &f.Record
	switch {
	case errors.Is(f.Err, driver.ErrNewerRecord):
		return "An instance of the newer build goes on with it. This build leaves it alone."
	case f.Err != nil:
		return "Nothing. No build can read the record, and repeats are refused."
	}
	switch rec.State {
	case driver.StateIssued:
		if rec.Attempt.Number > 0 {
			return runsAgain + " Its token is good until " + Stamp(rec.TokenExpires) + "."
		}
		return "The token waits for its first use until " + Stamp(rec.TokenExpires) + "."
	case driver.StateCompleted:
		return "Repeats get the stored response until " + Stamp(rec.ResultExpires) + ", and are refused from then on until " + Stamp(rec.KeyExpires) + "."
	case driver.StateExpired:
		return "Repeats are refused until " + Stamp(rec.KeyExpires) + ". Then the key is forgotten, and a request with it runs."
	case driver.StateReleased:
		return runsAgain + " Without a request the key is forgotten at " + Stamp(rec.KeyExpires) + "."
	case driver.StatePending:
		return f.nextPending()
	case driver.StateUnknown:
		return f.nextUnknown()
	}
	return ""
}

func (f *Facts) nextPending() string {
	switch f.Lock {
	case LockOfAttempt:
		return "Its holder settles it when the handler ends. If the holder dies, it counts as interrupted as soon as its lock is gone."
	case LockOfOther:
		return "The process with the lock settles it now."
	case LockElsewhere:
		return "Its holder settles it, if it lives. Otherwise nothing happens until the lock domain is retired."
	case LockUnknown:
		return "Not known, because nothing is known of its lock."
	}
	switch {
	case f.Policy == nil:
		return "The sweeper or the next request with the key asks the route's resolver, if it has one. Otherwise the outcome is in doubt, and a person has to settle it."
	case f.Policy.RunsAgain(f.Record.Attempt):
		return runsAgain
	case f.Policy.InDoubt.Resolver() != nil:
		return "The sweeper or the next request with the key asks the route's resolver."
	}
	return "The outcome is in doubt, and a person has to settle it. Repeats are refused until then."
}

func (f *Facts) nextUnknown() string {
	first := ""
	if f.Lock == LockOfOther || f.Lock == LockOfAttempt {
		first = "The process with the lock may settle it now. "
	}
	switch {
	case f.Policy == nil:
		return first + "A person has to settle it, unless the route has a resolver, which the sweeper and the next request ask again."
	case f.Policy.RunsAgain(f.Record.Attempt):
		return first + runsAgain
	case f.Policy.InDoubt.Resolver() != nil:
		return first + "The sweeper and the next request ask the route's resolver again. If it never knows, a person has to settle it."
	}
	return first + "A person has to settle it. Repeats are refused until then."
}

// settle is a command line for a shell. It quotes what is not a plain word.
func (f *Facts) settle() string {
	switch {
	case f.Settleable():
		return fmt.Sprintf("idemctl record resolve --key-id %s --attempt %d (--applied FILE | --not-applied) --reason TEXT", f.ID, f.Record.Attempt.Number)
	case f.Lock == LockElsewhere:
		return "idemctl store retire " + shellWord(f.Record.Attempt.Fence.Domain) + " --reason TEXT"
	}
	return ""
}

// shellWord quotes a word for a shell, unless it needs no quotes.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Stamp writes a time for a person, and the zero time as "".
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// Brief writes a duration with its two greatest units, such as "3m12s" or "2d4h".
func Brief(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		text := d.Truncate(time.Second).String()
		if strings.HasSuffix(text, "m0s") {
			return strings.TrimSuffix(text, "0s")
		}
		return text
	case d < day:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d/day), int(d.Hours())%24)
}
