package console

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// storyPage tells about one key.
type storyPage struct {
	page
	row
	Operation, ID string
	Meaning       string // of the state, in plain words
	Facts         *operate.Facts
	endings       []driver.Decided // of attempts, as far as the store knows them, newest first
	None          bool             // there is no record
	Unreadable    string           // why the record cannot be read
	Kind          string
	Started       string
	Returned      bool   // this instance has seen the handler of the open attempt return
	Command       string // that settles the attempt without the console
	Moments       []moment
	Seen          []moment // by this instance, oldest first
	SeenBefore    int      // how many there were before
	Response      *shown
	Back          string // link to the page of the list that the operator comes from
	Settled       string // the decision that was just made, if it still stands
	Problem       string // why nothing was settled
	Refused       bool   // the problem is of the form's entries
	Form          *form  // nil unless the operator can settle the attempt
	WhyNot        string // why there is no form for an open attempt
}

// moment is an entry of a time line.
type moment struct {
	At, What, Who string
	So            string // what was decided
	Why           string
	Ahead         bool // it has not happened yet
	time          time.Time
	Times         int    // how often it happened, one after the other
	Until         string // the last time
}

// shown is a stored response, as far as the operator may see it.
type shown struct {
	Summary string
	Fields  []string // names, with the values if those may be seen
	Body    string
	Hidden  bool // an operator with more rights sees more
}

// maxShown bounds how much of a body is shown, in bytes.
const maxShown = 64 << 10

// mostSeen bounds how many events of a key are shown.
const mostSeen = 100

func (c *Console) story(w http.ResponseWriter, r *http.Request) {
	id, err := driver.ParseKeyID(r.PathValue("id"))
	if err != nil {
		c.fail(w, r, http.StatusNotFound, "This is not a key ID.")
		return
	}
	p, err := c.tell(r, id)
	if err != nil {
		c.unavailable(w, r, err)
		return
	}
	status := http.StatusOK
	if p.None {
		status = http.StatusNotFound
	}
	p.remember(r.URL.Query())
	c.render(w, r, status, "story", p)
}

// remember tells what became of the form that led here. The record decides, because the link may
// be old.
func (p *storyPage) remember(v url.Values) {
	d, ended := p.decidedOn(v.Get("settled"))
	if rec := &p.Facts.Record; ended && d.ByPerson() && d.Attempt == rec.Attempt.Number && !rec.State.Open() {
		p.Settled = told(&d) + " " + p.Next
		if rec.State == driver.StateCompleted {
			p.Settled = told(&d) + " The client sends the same request with the same key again, and gets this answer."
		}
	}
	if !v.Has("late") {
		return
	}
	if p.Problem = changed; p.None {
		return
	}
	if d, ended := p.decidedOn(v.Get("late")); ended {
		p.Problem = "This form did nothing. " + told(&d) + " Below is the record as it is now."
	}
}

// back is the link to the page of the list that a story was opened from.
func back(r *http.Request) string {
	v, err := url.ParseQuery(strings.TrimPrefix(r.URL.Query().Get("from"), "?"))
	if err != nil {
		return ""
	}
	return parseQuery(v).self()
}

// tell collects the story of a key.
func (c *Console) tell(r *http.Request, id driver.KeyID) (*storyPage, error) {
	f, err := c.look.Get(r.Context(), id)
	if err != nil {
		return nil, err
	}
	decided, err := c.look.Decisions(r.Context(), id)
	if err != nil {
		return nil, err
	}
	rec, op := &f.Record, operatorOf(r)
	c.strip.sees(rec.State.Open())
	p := &storyPage{page: c.page(r, "Key "+id.OperationID()), Operation: id.OperationID(), ID: id.String(), Facts: f, Back: back(r)}
	p.endings = slices.Concat(decided, []driver.Decided{lastEnding(rec)})
	for _, n := range c.events.of(id) {
		p.see(n)
		if n.Type == telemetry.EventUnknown && n.Duration > 0 && n.Attempt == rec.Attempt { // of its holder
			p.Returned = true
		}
	}
	p.Moments = moments(f, decided)
	if f.Err == nil && rec.State == driver.StateNone {
		p.None = true
		return p, nil
	}
	p.row = rowOf(f, c.events.resolverSaid())
	if f.Err != nil {
		p.Unreadable = operate.OneLine(f.Err.Error())
		return p, nil //nolint:nilerr // the page shows it
	}
	p.Meaning = meaning(rec)
	p.Kind, p.Started = rec.Kind.String(), operate.Stamp(rec.Started)
	if c.cfg.Idemctl {
		p.Command = operate.OneLine(f.Story().Settle)
	}
	p.Response = responseShown(rec, op.MaySeeResponses)
	if rec.State.Open() {
		if p.WhyNot = whyNot(f, op); p.WhyNot == "" {
			p.Form = newForm(f, op, c.lookUp(r.Context(), rec.Route, p.Operation))
		}
	}
	return p, nil
}

// whyNot says why an operator gets no form for an open attempt.
func whyNot(f *operate.Facts, op Operator) string {
	switch {
	case f.Lock == operate.LockOfAttempt:
		return "The holder of this attempt lives and will settle it. It cannot be overruled."
	case f.Lock == operate.LockElsewhere:
		return "The attempt ran under a lock domain that this service does not use. Its holder may live there. The console does not overrule it."
	case !op.MaySettle:
		return "You may read only. Ask somebody who may settle."
	}
	return ""
}

// moments are what the record and the decisions tell, in the order of time.
func moments(f *operate.Facts, decided []driver.Decided) (list []moment) {
	rec := &f.Record
	add := func(at time.Time, m moment) {
		if !at.IsZero() {
			m.At, m.Ahead, m.time = operate.Stamp(at), at.After(f.Now), at
			list = append(list, m)
		}
	}
	number := int(rec.Attempt.Number)
	add(rec.Created, moment{What: "The record was made"})
	if number > 0 {
		add(rec.Started, moment{What: fmt.Sprintf("Attempt %d began", number), Why: operate.OneLine("under fence " + rec.Attempt.Fence.String())})
	}
	mine := false // the decision in the record is in the list of decisions too
	for _, d := range decided {
		mine = mine || d.Decision == rec.Decision && d.Attempt == rec.Attempt.Number
		add(d.At, ending(&d))
	}
	if d := lastEnding(rec); !mine && number > 0 {
		add(d.At, ending(&d))
	}
	add(rec.TokenExpires, moment{What: "The token expires"})
	add(rec.ResultExpires, moment{What: "The stored response expires"})
	add(rec.KeyExpires, moment{What: "The key is forgotten"})
	slices.SortStableFunc(list, func(a, b moment) int { return a.time.Compare(b.time) })
	return list
}

// lastEnding tells how the last attempt of a record ended. Its time is zero if it has not.
func lastEnding(rec *driver.Record) driver.Decided {
	d := driver.Decided{At: rec.Settled, Attempt: rec.Attempt.Number, State: rec.State, Decision: rec.Decision}
	switch rec.State {
	case driver.StateIssued:
		d.State = driver.StateReleased
	case driver.StateExpired:
		d.State = driver.StateCompleted
	case driver.StatePending:
		d.At = time.Time{}
	}
	return d
}

// meaning says what a state is, in the words in which a person decides.
func meaning(rec *driver.Record) string {
	switch rec.State {
	case driver.StatePending:
		return "An attempt began, and is not settled."
	case driver.StateUnknown:
		return "The outcome is in doubt."
	case driver.StateCompleted:
		return "The outcome is stored."
	case driver.StateExpired:
		return "The outcome was stored, and its response has expired."
	case driver.StateReleased:
		return "The last attempt did not take effect."
	case driver.StateIssued:
		if rec.Attempt.Number > 0 {
			return "The last attempt did not take effect. The token is good again."
		}
		return "The token was not used yet."
	case driver.StateNone:
	}
	return ""
}

// ending says how an attempt ended.
func ending(d *driver.Decided) moment {
	m := moment{Who: operate.OneLine(d.By), Why: operate.OneLine(d.Reason)}
	how := "ended"
	if d.By != "" {
		how = "was settled"
	}
	switch {
	case d.State == driver.StateUnknown:
		how = "ended in doubt"
	case d.State != driver.StateCompleted:
		m.So = "it did not take effect"
	case d.By == "":
		how = "completed"
	default:
		m.So = "it took effect"
	}
	m.What = fmt.Sprintf("Attempt %d %s", d.Attempt, how)
	return m
}

// told is the ending of an attempt as a sentence.
func told(d *driver.Decided) string {
	m := ending(d)
	if m.Who != "" {
		m.What += " by " + m.Who
	}
	m.What += " at " + operate.Stamp(d.At)
	if m.So != "" {
		m.What += ": " + m.So
	}
	return m.What + "."
}

// decidedOn tells how an attempt was settled, by its number in a link.
func (p *storyPage) decidedOn(number string) (d driver.Decided, found bool) {
	for _, d := range p.endings {
		if strconv.FormatUint(uint64(d.Attempt), 10) == number && !d.At.IsZero() && d.State != driver.StateUnknown {
			return d, true
		}
	}
	return d, false
}

// eventWords are the events in words.
var eventWords = map[telemetry.EventType]string{
	telemetry.EventRefused: "A request was refused", telemetry.EventReplayed: "A repeat got the stored response", telemetry.EventJoined: "A repeat waited in this process",
	telemetry.EventWaited: "A repeat waited for another process", telemetry.EventInterrupted: "The attempt was found interrupted",
	telemetry.EventCompleted: "The holder stored the outcome", telemetry.EventReleased: "The holder reported that it did not take effect", telemetry.EventUnknown: "The outcome is in doubt",
	telemetry.EventSuperseded: "Somebody else had settled the attempt", telemetry.EventOwnershipLost: "The lock was lost while the handler ran",
	telemetry.EventRepaired: "The store had lost the attempt, and has it again", telemetry.EventUnstored: "A success was answered and is not stored",
	telemetry.EventReleaseFailed: "The lock could not be given back at once", telemetry.EventLongRunning: "The handler runs for long",
	telemetry.EventUnresolved: "The resolver was asked",
}

// see adds an event to what this instance saw. It counts an event that only repeats the one before.
func (p *storyPage) see(n noted) {
	m := p.seenMoment(n)
	if last := len(p.Seen) - 1; last >= 0 && p.Seen[last].What == m.What && p.Seen[last].So == m.So && p.Seen[last].Why == m.Why {
		p.Seen[last].Times++
		p.Seen[last].Until = n.At.UTC().Format("15:04:05.000 UTC")
		return
	}
	if len(p.Seen) == mostSeen {
		p.SeenBefore += p.Seen[0].Times
		p.Seen = p.Seen[1:]
	}
	p.Seen = append(p.Seen, m)
}

func (p *storyPage) seenMoment(n noted) moment {
	m := moment{At: n.At.UTC().Format("2006-01-02 15:04:05.000 UTC"), What: eventWords[n.Type], Times: 1}
	var why []string
	switch {
	case n.Type == telemetry.EventBegun:
		m.What = fmt.Sprintf("Attempt %d began", n.Attempt.Number)
	case n.Type == telemetry.EventResolved:
		d, found := p.decidedOn(strconv.FormatUint(uint64(n.Attempt.Number), 10))
		if !found { // a later attempt has begun since, and the store keeps no decision of a resolver
			d = driver.Decided{Attempt: n.Attempt.Number, State: n.State, Decision: driver.Decision{By: "the resolver or the policy"}}
		}
		end := ending(&d)
		m.What, m.Who, m.So = end.What, end.Who, end.So
	case n.Type == telemetry.EventUnresolved:
		why = append(why, wordsOf(&n.Event))
	case m.What == "":
		m.What = n.Type.String()
	}
	if n.Err != nil && n.Type != telemetry.EventUnresolved {
		why = append(why, n.Err.Error())
	}
	if n.Code != "" {
		why = append(why, n.Code)
	}
	if n.Duration >= time.Millisecond {
		why = append(why, "after "+operate.Brief(n.Duration))
	}
	m.Why = operate.OneLine(strings.Join(why, ", "))
	return m
}

// responseShown is nil without a stored response.
func responseShown(rec *driver.Record, all bool) *shown {
	summary := responseOf(rec)
	switch {
	case summary == "":
		return nil
	case rec.ResponseErr != nil:
		return &shown{Summary: "unreadable: " + operate.OneLine(reasonOf(rec.ResponseErr))}
	case rec.Response.Omitted:
		return &shown{Summary: summary}
	}
	return showResponse(rec.Response, all)
}

// showResponse shows a response as far as the operator may see it.
func showResponse(resp *driver.Response, all bool) *shown {
	s := &shown{Summary: summaryOf(resp)}
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		if all {
			name += ": " + strings.Join(resp.Header[name], ", ")
		}
		s.Fields = append(s.Fields, operate.OneLine(name))
	}
	switch body := resp.Body; {
	case len(body) == 0:
	case !all:
		s.Hidden = true
	case !utf8.Valid(body):
		s.Body = fmt.Sprintf("%d bytes that are no text", len(body))
	default:
		s.Body = operate.Printable(string(body[:min(len(body), maxShown)]))
	}
	return s
}

// reasonOf names the kind of an error, without the words of a server.
func reasonOf(err error) string {
	for _, known := range []error{driver.ErrResponseDamaged, driver.ErrNewerRecord, driver.ErrUnavailable} {
		if errors.Is(err, known) {
			return strings.TrimPrefix(known.Error(), "idem: ")
		}
	}
	return "it cannot be opened with the keys of this service"
}
