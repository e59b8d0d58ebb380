package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// service is a service with a console.
type service struct {
	*testing.T
	engine *idem.Engine
	store  driver.Store
	policy idem.Policy
	url    string

	found     console.Found // by every look-up
	lookUpErr error
	gate      chan struct{} // look-ups wait until it is closed, unless it is nil
}

// startService starts a service in memory. The tests of the console itself have the other backends.
func startService(t *testing.T, opts ...memorystore.Option) *service {
	t.Helper()
	if testing.Short() {
		t.Skip(testserver.LeftOut)
	}
	s := &service{T: t, store: memorystore.New(opts...)}
	s.policy = idem.Policy{AllowGlobalKeys: true, Name: "POST /v1/payments", InDoubt: idem.AskResolver(
		func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.StillUnknown(), errors.New("the card network does not answer")
		})}
	var page *console.Console
	var err error
	s.engine, err = idem.New(memorylock.New(), s.store, idem.WithObserver(func(ctx context.Context, ev telemetry.Event) { page.Observe(ctx, ev) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.engine.Close(context.Background()) })
	authorise := func(r *http.Request) (console.Operator, error) {
		if name, password, _ := r.BasicAuth(); password == "secret" {
			return console.Operator{Name: name, MaySettle: name == "ada", MaySeeResponses: name == "ada"}, nil
		}
		return console.Operator{}, console.ErrUnauthorised
	}
	page, err = console.New(s.engine, authorise, console.Config{Service: "payments", Logger: slog.New(slog.DiscardHandler),
		ScopeHint: "the merchant, such as merchant_demo", Idemctl: true,
		LookUp: func(ctx context.Context, _, op string) (console.Found, error) {
			if s.gate != nil {
				select {
				case <-s.gate:
				case <-ctx.Done():
				}
			}
			found, err := s.found, s.lookUpErr
			found.More = "curl https://ledger.example/payments?operation_id=" + op
			return found, err
		},
		Policies: []idem.Policy{s.policy}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close(context.Background()) })
	mux := http.NewServeMux()
	mux.Handle("/console/", http.StripPrefix("/console", page))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL + "/console/"
	return s
}

func key(i int) idem.Key { return idem.Key(fmt.Sprintf("order-%d", i)) }

func (s *service) id(i int) driver.KeyID { return idem.NewKeyID("merchant_demo", key(i)) }

// confirm is the end of an operation ID.
func (s *service) confirm(i int) string { op := s.id(i).OperationID(); return op[len(op)-6:] }

// pay runs a payment whose answer is that of the handler.
func (s *service) pay(i int, h idem.Handler) (idem.Result, error) {
	p := s.policy
	return s.engine.Do(s.Context(), idem.Operation{Transport: idem.TransportHTTP, Scope: "merchant_demo", Key: key(i), Policy: &p,
		Fingerprint: idem.FingerprintOf("pay", "1250")}, h)
}

// inDoubt leaves payments in doubt. Half of them have an answer that was on its way.
func (s *service) inDoubt(from, to int) {
	s.Helper()
	for i := from; i < to; i++ {
		_, _ = s.pay(i, func(context.Context) (idem.Response, error) {
			if i%2 == 0 {
				return idem.Response{}, errors.New("the connection to the card network broke")
			}
			return idem.Response{Status: 504, Header: map[string][]string{"Content-Type": {"application/problem+json"}}, Body: []byte(`{"title":"Gateway Timeout","detail":"no answer from the card network"}`)}, nil
		})
		if rec := s.record(i); rec.State != driver.StateUnknown {
			s.Fatalf("payment %d is %v, want unknown", i, rec.State)
		}
	}
}

func (s *service) record(i int) driver.Record {
	s.Helper()
	rec, err := s.store.Get(s.Context(), s.id(i))
	if err != nil {
		s.Fatal(err)
	}
	return rec
}

// An operator finds an unknown outcome by the customer's key and settles it with the mouse.
func TestOperatorSettles(t *testing.T) {
	s := startService(t)
	s.inDoubt(0, 3)
	p := open(t, "ada")
	p.to(s.url)
	p.fill("#find-key", string(key(1))+kb.Enter) // without its scope
	p.await(`document.querySelector("main").innerText.includes("Enter its scope")`)
	p.pictures("console-not-found")
	p.wantNoFaults("404")
	p.fill("#find-scope", "merchant_demo"+kb.Enter) // the key is still there
	p.await(`location.pathname.includes("/key/") && !!document.querySelector("#applied-confirm")`)
	p.click("details.applied summary")
	p.fill("#s-body", `{"id":"pay_1",`)
	p.fill("#applied-reason", "Found in the ledger, ticket 4711")
	p.fill("#applied-confirm", "wrong")
	p.click("details.applied button")
	if rec := s.record(1); rec.State != driver.StateUnknown {
		t.Fatalf("a wrong confirmation settled: %v", rec.State)
	}
	if eval[bool](p, `document.querySelector("#applied-confirm").checkValidity()`) {
		t.Error("the page takes a wrong confirmation for a right one")
	}
	if title := eval[string](p, `document.querySelector("#applied-confirm").title`); title != "done "+s.confirm(1) {
		t.Errorf("the browser asks for %q, want %q", title, "done "+s.confirm(1))
	}
	eval[string](p, `document.querySelector("#applied-confirm").value = ""`)
	p.fill("#applied-confirm", "done "+s.confirm(1))
	p.click("details.applied button")
	p.await(`document.activeElement.matches(".problem") && document.activeElement.innerText.includes("not JSON")`)
	p.pictures("console-refused")
	p.wantNoFaults("422")
	eval[string](p, `document.querySelector("#s-body").value = ""`)
	p.fill("#s-body", `{"id":"pay_1","status":"succeeded"}`)
	p.fill("#applied-confirm", "done "+s.confirm(1))
	p.click("details.applied button")
	p.await(`document.activeElement.matches(".done")`)
	p.wantNoFaults()
	rec := s.record(1)
	if rec.State != driver.StateCompleted || rec.Decision.By != "ada" || rec.Decision.Reason != "Found in the ledger, ticket 4711" {
		t.Errorf("the record is %+v", rec)
	}
	res, err := s.pay(1, func(context.Context) (idem.Response, error) { t.Error("a repeat ran"); return idem.Response{}, nil })
	if err != nil || res.Response.Status != 201 || string(res.Response.Body) != `{"id":"pay_1","status":"succeeded"}` {
		t.Errorf("a repeat gets %+v, %v", res.Response, err)
	}
	p.pictures("console-settled")
}

// The same without a mouse.
func TestOperatorSettlesByKeyboard(t *testing.T) {
	s := startService(t)
	s.inDoubt(0, 2)
	p := open(t, "ada")
	p.to(s.url)
	p.tabTo(".skip")
	p.press(kb.Enter)
	p.tabTo(fmt.Sprintf(`a.op[href$=%q]`, s.id(0).String()))
	p.press(kb.Enter)
	p.await(`location.pathname.includes("/key/") && !!document.querySelector("#not-applied-confirm")`)
	p.tabTo("details.not-applied summary")
	p.press(kb.Enter)
	p.tabTo("#not-applied-reason")
	p.press("The network confirms that nothing happened")
	p.tabTo("#not-applied-confirm")
	p.press("again " + s.confirm(0))
	p.press(kb.Enter)
	p.await(`document.activeElement.matches(".done")`)
	p.pictures("console-released")
	p.wantNoFaults()
	if rec := s.record(0); rec.State != driver.StateReleased || rec.Decision.By != "ada" {
		t.Errorf("the record is %+v, want it released by ada", rec)
	}
}

// The ledger has the payment after all, when the operator says that it does not.
func TestOperatorIsToldOfWhatIsFound(t *testing.T) {
	s := startService(t)
	s.inDoubt(0, 1)
	s.found.Nothing = true
	p := open(t, "ada")
	p.to(s.url + "key/" + s.id(0).String())
	p.shows(".settle", "The service found nothing of this operation.")
	p.pictures("console-nothing")
	p.click("details.not-applied summary")
	p.fill("#not-applied-reason", "nothing found")
	p.fill("#not-applied-confirm", "again "+s.confirm(0))
	s.found = payment()
	p.click("details.not-applied button")
	p.await(`document.activeElement.innerText === "The service found: pay_1: 12.50 USD from alice to bob, of merchant_demo. So it took effect. Nothing was settled."`)
	p.pictures("console-found-late")
	p.wantNoFaults("409")
	if rec := s.record(0); rec.State != driver.StateUnknown {
		t.Fatalf("the record is %v", rec.State)
	}
	p.fill("#found-reason", "ticket 4711")
	p.fill("#found-confirm", s.confirm(0)+kb.Enter)
	p.await(`document.activeElement.matches(".done")`)
	if rec, want := s.record(0), payment().Answer; rec.State != driver.StateCompleted || !reflect.DeepEqual(idem.Response(*rec.Response), want) {
		t.Errorf("repeats get %+v, want %+v", rec.Response, want)
	}
	p.wantNoFaults()
}

// payment is a payment that a look-up finds.
func payment() console.Found {
	return console.Found{Says: "pay_1: 12.50 USD from alice to bob, of merchant_demo", Answer: idem.Response{Status: 201,
		Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/pay_1"}},
		Body:   []byte("\n{\"id\":\"pay_1\",\n\"note\":\"</textarea>&amp;\"}\n")}}
}

// A page that came over plain HTTP has no clipboard. The operator is told how to copy, and the text is
// selected.
func TestCopyWithoutAClipboard(t *testing.T) {
	s := startService(t)
	s.inDoubt(0, 1)
	p := open(t, "ada")
	p.to(s.url + "key/" + s.id(0).String())
	eval[bool](p, `(navigator.clipboard.writeText = async (text) => { window.copied = text; }, true)`)
	check := func(label, copied string) {
		for _, button := range []string{".head .copy", ".settle .copy"} {
			p.click(button)
			p.shows(button, label)
			if got, want := eval[string](p, copied), eval[string](p, fmt.Sprintf(`document.querySelector(%q).dataset.copy`, button)); got != want || want == "" {
				t.Errorf("%s copies %q, want %q", button, got, want)
			}
		}
	}
	check("Copied", `window.copied`)
	eval[bool](p, `delete Navigator.prototype.clipboard`)
	check("Press Ctrl+C", `getSelection().toString()`)
	p.await(`document.querySelector(".head .copy").innerText === "Copy"`) // again
	p.wantNoFaults()
}

// Somebody else settles while the operator reads. The operator is told, and nothing is overruled.
func TestOperatorIsToldOfAChange(t *testing.T) {
	s := startService(t)
	s.inDoubt(0, 1)
	p := open(t, "ada")
	p.to(s.url + "key/" + s.id(0).String())
	p.click("details.not-applied summary")
	p.fill("#not-applied-reason", "nothing found")
	p.fill("#not-applied-confirm", "again "+s.confirm(0))
	if _, err := s.engine.Decide(t.Context(), s.id(0), s.record(0).Attempt, idem.Applied(idem.Response{Status: 201}), driver.Decision{By: "bob"}, &s.policy); err != nil {
		t.Fatal(err)
	}
	p.click("details.not-applied button")
	p.await(`document.activeElement.innerText.startsWith("This form did nothing. Attempt 1 was settled by bob at ") && document.activeElement.innerText.includes(": it took effect.")`)
	p.pictures("console-late")
	p.wantNoFaults()
	if rec := s.record(0); rec.State != driver.StateCompleted || rec.Decision.By != "bob" {
		t.Errorf("the record is %+v, want what bob decided", rec)
	}
}

// After a bad night the inbox still leads to every doubt, and no page is long.
func TestConsoleWithThousandsOfDoubts(t *testing.T) {
	const doubts, rows, everyRefund = 5000, 25, 45
	at := time.Now().Add(-doubts * time.Second)
	s := startService(t, memorystore.WithClock(func() time.Time { return at }))
	domain, err := s.engine.DomainOf(t.Context(), s.id(0))
	if err != nil {
		t.Fatal(err)
	}
	var all, refunds []string
	for i := range doubts {
		at = at.Add(time.Second)
		begin := driver.BeginRequest{Route: s.policy.Name, Fence: driver.Fence{Domain: domain, Token: uint64(i + 1)}, Nonce: driver.NewNonce(), KeyTTL: 24 * time.Hour}
		all = append(all, s.id(i).String())
		if i%everyRefund == 0 {
			begin.Route = "POST /v1/refunds"
			refunds = append(refunds, s.id(i).String())
		}
		begun, err := s.store.Begin(t.Context(), s.id(i), begin)
		if err != nil || !begun.Begun {
			t.Fatalf("Begin() = %+v, %v", begun, err)
		}
		unknown := driver.Settlement{Attempt: begun.Record.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown, KeyTTL: 24 * time.Hour}
		if got, err := s.store.Settle(t.Context(), s.id(i), unknown); err != nil || !got.Settled {
			t.Fatalf("Settle() = %+v, %v", got, err)
		}
	}
	p := open(t, "ada")
	// On a slow machine a page has time to count some of them.
	p.to(s.url)
	p.await(`document.querySelector(".strip").innerText.includes("in doubt")`)
	p.pictures("console-thousands")

	// By the filter and its pages to the last one, and from a story back to it.
	p.fill("#f-route", "refunds")
	p.click(".filters button")
	p.await(`location.search.includes("route=refunds") && !!document.querySelector("a.op")`)
	const listed = `[...document.querySelectorAll("a.op")].map((a) => a.pathname.split("/").pop())`
	for got := []string(nil); ; {
		page := eval[[]string](p, listed)
		if got = append(got, page...); len(page) > rows {
			t.Errorf("%d rows on a page, at most %d", len(page), rows)
		}
		if !eval[bool](p, `!!document.querySelector("[rel=next]")`) {
			if !slices.Equal(got, refunds) {
				t.Errorf("the pages list %d refunds, want all %d, the oldest first", len(got), len(refunds))
			}
			break
		}
		here := eval[string](p, `location.href`)
		p.click("[rel=next]")
		p.await(fmt.Sprintf(`location.href !== %q && !!document.querySelector("a.op")`, here))
	}
	last := eval[string](p, `location.search`)
	p.click("tbody tr:last-child a.op")
	p.await(fmt.Sprintf(`location.pathname.endsWith(%q) && !!document.querySelector("#not-applied-confirm")`, refunds[len(refunds)-1]))
	p.click(".back a")
	p.await(fmt.Sprintf(`location.search === %q && document.querySelectorAll("a.op").length === %d`, last, (len(refunds)-1)%rows+1))

	// Every page without a filter, as the browser reads them.
	eval[bool](p, `(async () => {
		window.pages = [];
		for (let next = location.pathname; next; ) {
			const page = new DOMParser().parseFromString(await (await fetch(next)).text(), "text/html");
			window.pages.push([...page.querySelectorAll("a.op")].map((a) => a.getAttribute("href").match(/[0-9a-f]{64}/)[0]));
			next = page.querySelector("[rel=next]")?.getAttribute("href");
		}
		window.allRead = true;
	})() instanceof Promise`)
	for n := 1; !eval[bool](p, `!!window.allRead`); n++ {
		p.await(fmt.Sprintf(`!!window.allRead || window.pages.length >= %d`, n))
	}
	if got := eval[[]string](p, `window.pages.flat()`); !slices.Equal(got, all) {
		t.Errorf("the pages list %d doubts, want all %d, the oldest first", len(got), doubts)
	}
	if longest := eval[int](p, `Math.max(...window.pages.map((page) => page.length))`); longest > rows {
		t.Errorf("%d rows on a page, at most %d", longest, rows)
	}
	p.wantNoFaults()
}

// Every page fits its window and has no faults.
func TestConsoleLooks(t *testing.T) {
	s := startService(t)
	p := open(t, "ada")
	p.to(s.url)
	p.pictures("console-empty")
	s.inDoubt(0, 60)
	running, end := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = s.pay(1000, func(context.Context) (idem.Response, error) {
			close(running)
			<-end
			return idem.Response{Status: 201}, nil
		})
	}()
	<-running
	defer close(end)
	for name, path := range map[string]string{"console-inbox": "", "console-all": "?view=all", "console-story": "key/" + s.id(1).String(),
		"console-running": "key/" + s.id(1000).String(), "console-health": "health"} {
		if name == "console-story" {
			s.found = payment()
		}
		p.to(s.url + path)
		p.pictures(name)
		p.wantNoFaults()
	}
	s.found = console.Found{}
	p.to(s.url + "key/" + s.id(1).String())
	p.pictures("console-cannot-tell")
	s.found, s.lookUpErr = console.Found{}, errors.New("the ledger does not answer")
	p.to(s.url + "key/" + s.id(1).String())
	p.pictures("console-failed")
	s.found, s.lookUpErr = payment(), nil
	s.found.Answer.Header["Etag"] = []string{`"1"`}
	p.to(s.url + "key/" + s.id(1).String())
	p.await(`!!document.querySelector("details.found[open]")`)
	p.pictures("console-taken")
	p.wantNoFaults()
	p.to(s.url + "key/" + s.id(4711).String())
	p.pictures("console-none")
	p.wantNoFaults("404")
}
