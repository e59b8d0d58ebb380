package console_test

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// finds is a look-up with one result.
func finds(f console.Found, err error) func(context.Context, string, string) (console.Found, error) {
	return func(context.Context, string, string) (console.Found, error) { return f, err }
}

// paid is the answer of a payment. Its body has what HTML would change.
func paid() idem.Response {
	return idem.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/pay_1"}},
		Body: []byte("\n{\"id\":\"pay_1\",\"note\":\"<b>&amp;\\\"</b>\"}\n")}
}

var (
	entered = regexp.MustCompile(`<input id="s-[a-z]+" name="([a-z-]+)"[^>]* value="([^"]*)"`)
	area    = regexp.MustCompile(`(?s)<textarea id="s-body"[^>]*>\n(.*?)</textarea>`)
)

// entries reads what the form for an answer starts with, as a browser does.
func (a answer) entries() (fields []string) {
	for _, m := range entered.FindAllStringSubmatch(a.body, -1) {
		fields = append(fields, m[1], html.UnescapeString(m[2]))
	}
	if m := area.FindStringSubmatch(a.body); m != nil {
		fields = append(fields, "body", strings.ReplaceAll(html.UnescapeString(m[1]), "\n", "\r\n"))
	}
	return fields
}

// wantResponse checks what repeats of a key get.
func (r *rig) wantResponse(key idem.Key, want idem.Response) {
	r.Helper()
	rec := r.record(key)
	if rec.State != driver.StateCompleted || rec.Response == nil {
		r.Fatalf("the record is %+v, want it completed", rec)
	}
	got := rec.Response
	if got.Status != want.Status || string(got.Body) != string(want.Body) || len(got.Header) != len(want.Header) || http.Header(got.Header).Get("Location") != http.Header(want.Header).Get("Location") {
		r.Errorf("repeats get %+v, want %+v", got, want)
	}
}

// The operator only compares what was found, and repeats get it, whatever the operator sends.
func TestFoundIsTheAnswer(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("k", nil)
		r.lookUp = func(_ context.Context, on, op string) (console.Found, error) {
			if on != route || op != id("k").OperationID() {
				return console.Found{}, errors.New("another operation")
			}
			return console.Found{Says: "pay_1: <12.50> USD\u202e", Answer: paid(), More: "SELECT <1>"}, nil
		}
		ada := r.as("ada")
		page := ada.storyOf("k")
		page.want(r.T, 200, "<b>The service found:</b> pay_1: &lt;12.50&gt; USD\ufffd</p>", "Compare it with the order", `class="choice found" open`, "<b>It took effect.</b> Repeats get the answer that the service found", "/v1/payments/pay_1",
			"!SELECT", "!It did not take effect", "!\u202e", "!have no body", "!normal answer", "!<textarea id=\"s-body")
		if form, facts := strings.Index(page.body, `id="settle"`), strings.Index(page.body, `id="known"`); form > facts {
			r.Errorf("the form comes after the facts:\n%s", page.body)
		}
		ada.settle("k", page, "outcome", "applied", "status", "201", "body", `{"id":"mine"}`).want(r.T, 409, "So it took effect. Nothing was settled")
		ada.settle("k", page, "outcome", "found").want(r.T, 200, "it took effect. The client sends the same request with the same key again, and gets this answer.")
		r.wantResponse("k", paid())
	})
}

// Words are found, whatever else the service says. An answer that is no success, or has a part left
// to the operator, is not taken as it is.
func TestFoundIsNotComplete(t *testing.T) {
	t.Parallel()
	declined, part := paid(), paid()
	declined.Status, part.Body = 402, nil
	for name, f := range map[string]console.Found{
		"no answer": {Says: "pay_1", Nothing: true}, "a hint": {Says: "pay_1", Answer: paid(), Hint: "more"}, "no body": {Says: "pay_1", Answer: part}, "no success": {Says: "pay_1", Answer: declined},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, backends["memory"])
			r.lookUp = finds(f, nil)
			r.inDoubt("k", nil)
			ada := r.as("ada")
			page := ada.storyOf("k")
			page.want(t, 200, "The service found:", `class="choice applied" open`, "an answer that you enter", "!It did not take effect", `!"found"`)
			ada.settle("k", page, "outcome", "found").want(t, 409, "finds something else now. Nothing was settled")
			ada.settle("k", page, "outcome", "not-applied").want(t, 409, "The service found: pay_1. So it took effect. Nothing was settled", `class="choice applied" open`)
			if name == "no success" {
				ada.settle("k", page, append(page.entries(), "outcome", "applied")...).want(t, 422, "status 402 tells the client that it failed")
			}
			if state := r.record("k").State; state != driver.StateUnknown {
				t.Errorf("the record is %v", state)
			}
		})
	}
}

// An answer reaches repeats as it is, also one that a form could not hold, or that the operator may not see.
func TestFoundIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	tagged, binary, tabs, turned, trailed, grpc := paid(), paid(), paid(), paid(), paid(), idem.Response{Body: []byte{0x0a, 0x01, 0xff}}
	tagged.Header["Etag"] = []string{`"1"`}
	binary.Header["Content-Type"], binary.Body = []string{"application/pdf"}, []byte{0xff, 0xfe}
	tabs.Body = []byte("{\n\t\"id\":\"pay_1\"\r\n}")
	turned.Header["Location"], turned.Body = []string{"/\u202e1"}, []byte("{\"id\":\"\u202e1\"}")
	trailed.Trailer = map[string][]string{"Checksum": {"1"}}
	for name, tt := range map[string]struct {
		operator, route string
		answer          idem.Response
		shows           string
	}{
		"another header": {"ada", route, tagged, "Etag: &#34;1&#34;"}, "no text": {"ada", route, binary, "2 bytes that are no text"}, "tabs": {"ada", route, tabs, "pay_1"},
		"other directions": {"ada", route, turned, "Location: /\\u202e1"}, "a trailer": {"ada", route, trailed, "pay_1"}, "a hidden body": {"bob", route, paid(), "You may not see its content"}, "gRPC": {"ada", "/pay.v1.Pay/Pay", grpc, "status 0, 3 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, backends["memory"])
			r.policy.Name = tt.route
			r.inDoubt("k", nil)
			r.lookUp = finds(console.Found{Says: "pay_1", Answer: tt.answer}, nil)
			b := r.as(tt.operator)
			page := b.storyOf("k")
			page.want(t, 200, `class="choice found" open`, "Repeats get the answer that the service found", tt.shows, "!It did not take effect", "!\t\"id", "!\u202e", "!idemctl record resolve --applied.")
			if tt.operator == "bob" {
				page.want(t, 200, "!note", "!/v1/payments/pay_1")
			}
			if tt.route != route {
				page.want(t, 200, `!"choice applied"`)
				b.settle("k", page, "outcome", "applied", "status", "201", "body", "{}").want(t, 409, "The service found: pay_1. So it took effect.")
			}
			r.lookUp = finds(console.Found{Says: "pay_2", Answer: tt.answer}, nil)
			b.settle("k", page, "outcome", "found").want(t, 409, "The service finds something else now. Nothing was settled", "pay_2")
			r.lookUp = finds(console.Found{Says: "pay_1", Answer: tt.answer}, nil)
			b.settle("k", page, "outcome", "found", "body", "mine").want(t, 422, "You have entered an answer")
			b.settle("k", page, "outcome", "found").want(t, 200, "it took effect. The client sends the same request")
			r.wantResponse("k", tt.answer)
			if got := r.record("k").Response; len(got.Trailer) != len(tt.answer.Trailer) {
				t.Errorf("the trailer is %v, want %v", got.Trailer, tt.answer.Trailer)
			}
		})
	}
}

// The form for the rest of an answer starts with what was found, and with the usual values.
func TestFoundInPart(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	r.lookUp = finds(console.Found{Says: "pay_1", Answer: idem.Response{Body: []byte("{}")}, Hint: "the header <Location>"}, nil)
	ada := r.as("ada")
	page := ada.storyOf("k")
	page.want(t, 200, "Repeats get an answer that you enter", "It has the header &lt;Location&gt;.", "!never happened")
	if got := page.entries(); !slices.Equal(got, []string{"status", "201", "content-type", "application/json", "location", "", "body", "{}"}) {
		t.Errorf("the form starts with %q", got)
	}
	ada.settle("k", page, append(page.entries(), "outcome", "applied", "location", "/v1/payments/pay_1")...).want(t, 200, "it took effect")
	r.wantResponse("k", idem.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/pay_1"}}, Body: []byte("{}")})
}

// A gRPC route whose answer is not known leaves it to idemctl.
func TestFoundOverGRPCWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.policy.Name = "/pay.v1.Pay/Pay"
	r.inDoubt("k", nil)
	ada := r.as("ada")
	page := ada.storyOf("k")
	for _, answer := range []idem.Response{{}, {Status: 5, Body: []byte("x")}} {
		r.lookUp = finds(console.Found{Says: "pay_1", Answer: answer}, nil)
		ada.storyOf("k").want(t, 200, "The service found:</b> pay_1", "idemctl record resolve --applied.", "!<details")
		ada.settle("k", page, "outcome", "applied", "status", "201", "body", "{}").want(t, 422, "cannot be entered here")
	}
}

func TestNothingIsFound(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("k", nil)
		asked := 0
		r.lookUp = func(context.Context, string, string) (console.Found, error) {
			asked++
			return console.Found{Nothing: true, More: "ask <the bank>\x1b"}, nil
		}
		ada := r.as("ada")
		proof := "Its handler has returned."
		if r.record("k").Attempt.Fence.Domain == driver.JoinedDomain { // its record was made without a handler
			proof = "Its process may be paused and go on later"
		}
		page := ada.storyOf("k")
		page.want(r.T, 200, "The service found nothing of this operation. That is no proof.", proof, `<code>ask &lt;the bank&gt;�</code>`,
			"It did not take effect", "Repeats get an answer that you enter", "never happened", "!details name=\"outcome\" class=\"choice applied\" open", "!not-applied\" open")
		if asked != 1 {
			r.Errorf("a page asks %d times", asked)
		}
		ada.settle("k", page, "outcome", "not-applied").want(r.T, 200, "it did not take effect")
		if state := r.record("k").State; state != driver.StateReleased || asked != 2 {
			r.Errorf("the record is %v after %d look-ups, want it released after 2", state, asked)
		}
	})
}

// What took effect after the operator has opened the page is not run again.
func TestFoundAfterAll(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("k", nil)
		ada := r.as("ada")
		for _, before := range []console.Found{{}, {Nothing: true}} {
			r.lookUp = finds(before, nil)
			page := ada.storyOf("k")
			r.lookUp = finds(console.Found{Says: "pay_1 <b>", Answer: paid()}, nil)
			got := ada.settle("k", page, "outcome", "not-applied", "reason", "nothing there")
			got.want(r.T, 409, "The service found: pay_1 &lt;b&gt;. So it took effect. Nothing was settled.", `class="choice found" open`, "/v1/payments/pay_1", "!nothing there")
			ada.settle("k", page, "outcome", "applied", "status", "201", "body", `{"id":"mine"}`).want(r.T, 409, "The service found: pay_1 &lt;b&gt;.")
			if state := r.record("k").State; state != driver.StateUnknown {
				r.Fatalf("the record is %v", state)
			}
		}
	})
}

// Without a look-up that works, nothing is run again, and what took effect can be settled.
func TestLookUpFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lookUp func(context.Context, string, string) (console.Found, error)
		says   string
	}{
		"an error": {finds(console.Found{Says: "pay_1", Nothing: true, More: "ask the bank"}, errors.New("the <ledger>\u202e is away")), `The look-up failed:</b> the &lt;ledger&gt;\u202e is away.`},
		"a panic":  {func(context.Context, string, string) (console.Found, error) { panic("secret") }, "The look-up failed:</b> it panicked, and the log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, backends["memory"])
			r.lookUp = finds(console.Found{Nothing: true}, nil)
			r.inDoubt("k", nil)
			ada := r.as("ada")
			page := ada.storyOf("k")
			r.lookUp = tt.lookUp
			got := ada.storyOf("k")
			got.want(t, 200, tt.says, "Load the page again", `"choice applied">`, "!\"choice not-applied", "!secret", "!\u202e", "!pay_1", "!found nothing")
			if name == "an error" {
				got.want(t, 200, "ask the bank")
			} else if !strings.Contains(r.log.String(), "lookup_test.go") {
				t.Errorf("the log does not tell where it panicked: %s", r.log)
			}
			ada.settle("k", page, "outcome", "not-applied").want(t, 503, "The look-up failed: ", "Nothing was settled")
			if state := r.record("k").State; state != driver.StateUnknown {
				t.Errorf("the record is %v", state)
			}
			ada.settle("k", page, "outcome", "applied", "status", "204").want(t, 200, "it took effect")
		})
	}
}

// A look-up that ignores the end of its context does not keep the page, and many of them do not pile
// up.
func TestLookUpTakesTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memorystore.New()
		engine := newEngine(t, memorylock.New(), store)
		policy := idem.Policy{AllowGlobalKeys: true, Name: route, InDoubt: idem.LeaveUnknown()}
		_, _ = engine.Do(t.Context(), idem.Operation{Transport: idem.TransportHTTP, Scope: "m", Key: "k", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "1")},
			func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("lost") })
		var stuck atomic.Bool
		stuck.Store(true)
		end := make(chan struct{})
		c, err := console.New(engine, authorise, console.Config{LookUp: func(context.Context, string, string) (console.Found, error) {
			if stuck.Load() {
				<-end
			}
			return console.Found{Nothing: true}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		page := func() (string, time.Duration) {
			began, w, req := time.Now(), httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/key/"+id("k").String(), nil)
			req.SetBasicAuth("ada", "secret")
			c.ServeHTTP(w, req)
			return w.Body.String(), time.Since(began)
		}
		for range 8 {
			if got, took := page(); !strings.Contains(got, "it took longer than 5s") || took != 5*time.Second {
				t.Fatalf("after %v the page is\n%s", took, got)
			}
		}
		if got, took := page(); !strings.Contains(got, "earlier look-ups have not ended") || took != 0 {
			t.Errorf("after %v the page is\n%s", took, got)
		}
		stuck.Store(false)
		close(end)
		synctest.Wait()
		if got, _ := page(); !strings.Contains(got, "found nothing") {
			t.Errorf("after the look-ups have ended, the page is\n%s", got)
		}
	})
}

// Nothing is looked up for an operator who cannot settle, and where there is nothing to settle.
func TestOnlyWhoMaySettleLooksUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.lookUp = func(context.Context, string, string) (console.Found, error) {
		t.Error("it was looked up")
		return console.Found{Says: "pay_1", Answer: paid(), Hint: "pay_1", More: "pay_1"}, nil
	}
	r.inDoubt("k", nil)
	r.as("reader").storyOf("k").want(t, 200, "You may read only", "!pay_1", "!The service found")
	r.as("reader").do("POST", "key/"+id("k").String()+"/settle", url.Values{"token": {r.as("reader").get("").form().Get("token")}, "outcome": {"not-applied"}}).want(t, 403)
	ada := r.as("ada")
	r.as("reader").get("").want(t, 200, id("k").OperationID(), "!pay_1", "!checkbox")
	ada.get("?view=all").want(t, 200, id("k").OperationID(), "!pay_1")
	if _, err := r.engine.Do(t.Context(), r.operation("runs"), func(context.Context) (idem.Response, error) {
		ada.storyOf("runs").want(t, 200, "It cannot be overruled", "!pay_1")
		return idem.Response{Status: 201}, nil
	}); err != nil {
		t.Fatal(err)
	}
	ada.storyOf("runs").want(t, 200, "completed", "!pay_1")
	ada.storyOf("none").want(t, 404, "!pay_1")
}

// An operator without the right to see responses enters the answer without seeing the one of the
// look-up.
func TestAnswerOfALookUpIsForThoseWhoMaySeeResponses(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	r.lookUp = finds(console.Found{Says: "pay_1", Answer: paid(), Hint: "the receipt"}, nil)
	for name, sees := range map[string]bool{"ada": true, "bob": false} {
		page := r.as(name).storyOf("k")
		for _, secret := range []string{"note", "/v1/payments/pay_1"} {
			if strings.Contains(page.body, secret) != sees {
				t.Errorf("%s sees %q = %t, want %t", name, secret, !sees, sees)
			}
		}
	}
}
