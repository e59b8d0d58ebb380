package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// eachBackend runs a test on every combination of lock and store.
func eachBackend(t *testing.T, test func(r *rig)) {
	t.Parallel()
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newRig(t, b))
		})
	}
}

func TestSettleAsApplied(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("k", nil)
		ada := r.as("ada")
		page := ada.storyOf("k")
		page.want(r.T, 200, "unknown", "It did not take effect", "Not found is no proof", "GET /v1/payments?operation_id="+id("k").OperationID()+" # "+route, "It has an &lt;ID&gt; of "+route+".", `name="status" inputmode="numeric" required pattern="[23][0-9][0-9]" title="a number from 200 to 399" value="202"`, `value="application/json"`, "If you find it, it took effect", "no process holds the lock", "idemctl record resolve --key-id "+id("k").String())
		done := ada.settle("k", page, "outcome", "applied", "status", "201", "content-type", "application/json", "location", "/v1/payments/7", "body", "{\r\n\"id\":7}")
		done.want(r.T, 200, "Attempt 1 was settled by ada at ", ": it took effect. The client sends the same request with the same key again, and gets this answer.<", "by <b>ada</b>: it took effect", "ticket 4711", "!Settle attempt", "!<dt>Resolver</dt>", "No attempt is open.")
		rec := r.record("k")
		if rec.State != driver.StateCompleted || rec.Decision != (driver.Decision{By: "ada", Reason: "found in the ledger, ticket 4711"}) {
			r.Errorf("the record is %+v", rec)
		}
		res, err := r.engine.Do(r.Context(), r.operation("k"), func(context.Context) (idem.Response, error) {
			r.Error("a repeat ran")
			return idem.Response{}, nil
		})
		if err != nil || !res.Replayed || res.Response.Status != 201 || string(res.Response.Body) != "{\n\"id\":7}" || res.Response.Header["Location"][0] != "/v1/payments/7" {
			r.Errorf("a repeat got %+v, %v", res, err)
		}
		if !strings.Contains(r.log.String(), "operator=ada") {
			r.Errorf("the log does not tell who settled: %s", r.log)
		}
		// The same form again decides nothing.
		ada.settle("k", page, "outcome", "not-applied").want(r.T, 200, "This form did nothing. Attempt 1 was settled by ada at ", " UTC: it took effect. Below is")
		if again := r.record("k"); again.State != driver.StateCompleted {
			r.Errorf("the record became %v", again.State)
		}
	})
}

// The console may know no policy of the route. The record says for how long the route remembers.
func TestSettleKeepsTheTimesOfTheRoute(t *testing.T) {
	eachBackend(t, func(r *rig) {
		op := r.operation("k")
		op.Policy.Name, op.Policy.ResultTTL, op.Policy.KeyTTL = "POST /unheard-of", 15*24*time.Hour, 30*24*time.Hour
		// In joined mode a handler without its transaction leaves its outcome in doubt.
		_, _ = r.engine.Do(r.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{Status: 200}, errIfAlone(r) })
		ada := r.as("ada")
		ada.settle("k", ada.storyOf("k"), "outcome", "applied", "status", "201", "content-type", "text/plain", "body", "paid").want(r.T, 200)
		rec := r.record("k")
		if rec.ResultExpires.Sub(rec.Settled) != op.Policy.ResultTTL || rec.KeyExpires.Sub(rec.Settled) != op.Policy.KeyTTL {
			r.Errorf("%v with a result until %v and a key until %v, settled at %v, want 15 and 30 days", rec.State, rec.ResultExpires, rec.KeyExpires, rec.Settled)
		}
	})
}

// errIfAlone is the error of a handler whose outcome is in doubt, unless it has a transaction.
func errIfAlone(r *rig) error {
	if domain, _ := r.engine.DomainOf(r.Context(), id("k")); domain == driver.JoinedDomain {
		return nil
	}
	return errors.New("lost")
}

func TestSettleAsNotApplied(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("k", nil)
		bob := r.as("bob")
		bob.settle("k", bob.storyOf("k"), "outcome", "not-applied").want(r.T, 200, "Attempt 1 was settled by bob at ", " UTC: it did not take effect. The next request with the key runs the handler again. If the route charges, that request charges. ",
			`class="state released">released</span> The last attempt did not take effect.`, "by <b>bob</b>: it did not take effect")
		if rec := r.record("k"); rec.State != driver.StateReleased {
			r.Errorf("the record is %v, want released", rec.State)
		}
	})
}

// The response that was on its way is of a failure. So it is shown, and no outcome has it.
func TestTheResponseOnItsWayIsNotOffered(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", &idem.Response{Status: 503, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: []byte("4111 1111 1111 1111")})
	bob := r.as("bob")
	page := bob.storyOf("k")
	page.want(t, 200, "status 503, 19 bytes", "You may not see its content", "Content-Type", "!4111", "!text/plain", `!"stored"`)
	r.as("ada").storyOf("k").want(t, 200, "4111 1111 1111 1111", "text/plain")
	bob.settle("k", page, "outcome", "stored").want(t, 422, "Choose what happened")
}

// A record that has changed while the operator was reading is not settled.
func TestSettleIsAboutTheAttemptThatWasSeen(t *testing.T) {
	eachBackend(t, func(r *rig) {
		first := r.inDoubt("k", nil)
		ada := r.as("ada")
		page := ada.storyOf("k")
		policy := r.policy
		if _, err := r.engine.Decide(r.Context(), id("k"), first, idem.NotApplied(), driver.Decision{By: "bob"}, &policy); err != nil {
			r.Fatal(err)
		}
		r.beginAgain("k")
		got := ada.settle("k", page, "outcome", "not-applied", "reason", "about the first one")
		got.want(r.T, 200, "This form did nothing. Attempt 1 was settled by bob at ", " UTC: it did not take effect. Below is", "!about the first one")
		if rec := r.record("k"); rec.State != driver.StatePending || rec.Attempt.Number != 2 {
			r.Errorf("the record is %+v, want attempt 2 pending", rec)
		}
	})
}

// After a loss another attempt may have the number of the one that was seen.
func TestSettleIsAboutNoOtherAttemptWithItsNumber(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	a := r.inDoubt("k", nil)
	ada := r.as("ada")
	page := ada.storyOf("k")
	attempt := page.form().Get("attempt")
	for what, change := range map[string]func(a *driver.Attempt){
		"nonce":  func(a *driver.Attempt) { a.Nonce = driver.NewNonce() },
		"fence":  func(a *driver.Attempt) { a.Fence.Token++ },
		"domain": func(a *driver.Attempt) { a.Fence.Domain = "elsewhere" },
	} {
		seen := a
		change(&seen)
		other := fmt.Sprintf("%d.%s.%d.%s", seen.Number, seen.Nonce, seen.Fence.Token, seen.Fence.Domain)
		if !strings.HasPrefix(attempt, fmt.Sprint(seen.Number, ".")) || other == attempt {
			t.Fatalf("the form names its attempt %q, want one unlike %q", attempt, other)
		}
		ada.settle("k", page, "attempt", other, "outcome", "not-applied", "reason", what).want(t, 200, "The record has changed while you were reading")
		if rec := r.record("k"); rec.State != driver.StateUnknown {
			t.Errorf("after a form about another %s the record is %v, want unknown", what, rec.State)
		}
	}
	ada.settle("k", page, "outcome", "not-applied", "reason", "looked").want(t, 200, "it did not take effect")
}

// A holder that runs is not overruled, even by a form that was made by hand.
func TestSettleDoesNotOverruleTheHolder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "redis", "zookeeper and sealed redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, backends[name])
			r.inDoubt("other", nil)
			ada := r.as("ada")
			form := ada.storyOf("other")
			_, err := r.engine.Do(r.Context(), r.operation("k"), func(context.Context) (idem.Response, error) {
				page := ada.storyOf("k")
				page.want(t, 200, "alive: ", "It cannot be overruled", "!</code> to confirm")
				a := r.record("k").Attempt
				attempt := strings.Join([]string{"1", a.Nonce.String(), strings.TrimPrefix(a.Fence.String(), a.Fence.Domain+"/"), a.Fence.Domain}, ".")
				ada.settle("k", form, "attempt", attempt, "outcome", "not-applied").want(t, 409, "lock of the key is held")
				return idem.Response{Status: 200}, nil
			})
			if err != nil || r.record("k").State != driver.StateCompleted {
				t.Errorf("Do() = %v, the record is %v, want the holder's outcome", err, r.record("k").State)
			}
		})
	}
}

func TestSettleWantsACompleteForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	ada := r.as("ada")
	page := ada.storyOf("k")
	for _, tt := range []struct {
		fields []string
		want   string
	}{
		{nil, "Choose what happened."},
		{[]string{"outcome", "no-idea"}, "Choose what happened."},
		{[]string{"outcome", "stored"}, "Choose what happened."},
		{[]string{"outcome", "not-applied", "reason", "  "}, "Give a reason."},
		{[]string{"outcome", "not-applied", "reason", strings.Repeat("x", 513)}, "513 bytes"},
		{[]string{"outcome", "not-applied", "confirm", ""}, "The confirmation of this outcome is “again "},
		{[]string{"outcome", "not-applied", "confirm", confirmation("k", "applied")}, "The confirmation of this outcome is “again "},
		{[]string{"outcome", "applied", "status", "204", "confirm", confirmation("k", "not-applied")}, "The confirmation of this outcome is “"},
		{[]string{"outcome", "not-applied", "body", `{"id":"pay_1"}`}, "You have entered an answer"},
		{[]string{"outcome", "not-applied", "location", "/v1/payments/pay_1"}, "You have entered an answer"},
		{[]string{"outcome", "not-applied", "status", "202"}, "You have entered an answer"},
		{[]string{"outcome", "not-applied", "empty", "yes"}, "You have entered an answer"},
		{[]string{"outcome", "applied", "status", "201", "content-type", "application/json"}, "The body is empty"},
		{[]string{"outcome", "applied", "status", "201", "content-type", "application/json", "body", "{}", "empty", "yes"}, "ticked that the answer has none"},
		{[]string{"outcome", "applied", "status", "201", "content-type", "application/json", "body", `{"id":"pay_1"`}, "not JSON"},
		{[]string{"outcome", "applied", "status", "99"}, "200 to 399"},
		{[]string{"outcome", "applied", "status", "199", "empty", "yes"}, "200 to 399"},
		{[]string{"outcome", "applied", "status", "400", "empty", "yes"}, "status 400 tells the client that it failed"},
		{[]string{"outcome", "applied", "status", "402", "location", "/v1/payments/pay_1", "body", "{}"}, "status 402 tells the client that it failed"},
		{[]string{"outcome", "found"}, "finds something else now"}, // which is nothing
		{[]string{"outcome", "applied", "status", "204", "body", "x"}, "has no body"},
		{[]string{"outcome", "applied", "status", "201", "body", "x", "content-type", "json;;"}, "media type"},
		{[]string{"outcome", "applied", "status", "201", "empty", "yes", "location", "/a\r\nSet-Cookie: x"}, "printable ASCII"},
		{[]string{"outcome", "applied", "status", "201", "body", "\xff"}, "not UTF-8"},
	} {
		got := ada.settle("k", page, tt.fields...)
		status := 422
		if tt.fields != nil && tt.fields[1] == "found" {
			status = 409
		}
		got.want(t, status, tt.want, "Nothing was settled")
		if rec := r.record("k"); rec.State != driver.StateUnknown {
			t.Fatalf("after %q the record is %v", tt.fields, rec.State)
		}
	}
	if log := r.log.String(); !strings.Contains(log, "a settlement was refused") || !strings.Contains(log, "operator=ada outcome=not-applied") {
		t.Errorf("the log does not tell who tried what: %s", log)
	}
	// What was entered is still there, without the confirmation.
	got := ada.settle("k", page, "outcome", "applied", "status", "99", "body", "<b>mine</b>")
	got.want(t, 422, "found in the ledger", "&lt;b&gt;mine&lt;/b&gt;", `class="choice applied" open`, "!<b>mine", `"status" inputmode="numeric" required pattern="[23][0-9][0-9]" title="a number from 200 to 399" value="99"`)
	// The form for an answer still starts with the normal one if another form was refused.
	ada.settle("k", page, "outcome", "not-applied", "confirm", "wrong").want(t, 422, `value="202"`, `value="application/json"`)
}

// A token whose attempt did not take effect is good again. The page says what that means.
func TestSettleATokenAsNotApplied(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.policy.IssuedTokens = true
	token, err := r.engine.IssueToken(t.Context(), "m", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key := token.Value
	ada := r.as("ada")
	ada.storyOf(key).want(t, 200, "The token was not used yet.", "first use until")
	r.inDoubt(key, nil)
	ada.settle(key, ada.storyOf(key), "outcome", "not-applied").want(t, 200, `autofocus>Attempt 1 was settled by ada at `,
		": it did not take effect. The next request with the key runs the handler again. If the route charges, that request charges.",
		"The last attempt did not take effect. The token is good again.")
}

// An answer may have no body, if the operator says so.
func TestSettleWithAnEmptyBody(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	ada := r.as("ada")
	ada.settle("k", ada.storyOf("k"), "outcome", "applied", "status", "201", "content-type", "application/json", "location", "/v1/payments/pay_1", "empty", "yes").
		want(t, 200, "was settled by ada", " UTC: it took effect.")
	if rec := r.record("k"); rec.Response == nil || rec.Response.Status != 201 || len(rec.Response.Body) != 0 || rec.Response.Header["Content-Type"] != nil {
		t.Errorf("the record is %+v", rec.Response)
	}
}

// An old link tells what the record says, and nothing else.
func TestOldLinkToADecision(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	ada := r.as("ada")
	ada.storyOf("k").want(t, 200, "Attempt 1 ended in doubt")
	path := "key/" + id("k").String() + "?settled=1"
	ada.get(path).want(t, 200, "!was settled", "!autofocus")
	done := ada.settle("k", ada.storyOf("k"), "outcome", "not-applied")
	done.want(t, 200, `autofocus>Attempt 1 was settled by ada at `)
	if _, err := r.engine.Do(t.Context(), r.operation("k"), func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil }); err != nil {
		t.Fatal(err)
	}
	ada.get(done.path).want(t, 200, "completed", "!autofocus", "Attempt 2 completed")
	ada.get("key/"+id("k").String()+"?late=7").want(t, 200, "The record has changed while you were reading")
}

// Without a store that idemctl can reach, and without a hint, the page shows neither.
func TestStoryWithoutHints(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	var err error
	if r.console, err = console.New(r.engine, authorise); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/ops/console", r.console))
	t.Cleanup(server.Close)
	r.url = server.URL + "/ops/console/"
	r.as("ada").storyOf("k").want(t, 200, "Look <code>"+id("k").OperationID()+"</code> up in the systems that this route calls.", "!idemctl", "!How to look it up")
}
