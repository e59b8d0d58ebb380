package browser

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// charged waits until the page shows how often alice has paid, with nothing on its way.
func (p *tab) charged(times string) {
	p.Helper()
	p.await(fmt.Sprintf(`document.querySelector("#charged").innerText === %q && !document.querySelector("#answers .wait")`, times))
}

// shows waits until a part of the page has a text.
func (p *tab) shows(selector, text string) {
	p.Helper()
	p.await(fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.checkVisibility() && e.innerText.includes(%q))`, selector, text))
}

func TestSampleChargesOnce(t *testing.T) {
	for name, flags := range map[string][]string{"joined": nil, "memory": {"--token-store", "memory", "--processor-latency", "300ms"}} {
		t.Run(name, func(t *testing.T) {
			url := testserver.StartSample(t, flags...).URL()
			p := open(t, "")
			p.to(url + "/")
			p.shows("#balance", "$")
			if eval[bool](p, `document.querySelector(".once, .without").checkVisibility() || document.querySelector("#operation").checkVisibility()`) {
				t.Error("a page on which nothing has happened shows a success, a danger or an operation")
			}
			if name == "joined" {
				p.pictures("sample-first")
			}
			p.click("#double")
			p.charged("1 time")
			p.await(`document.querySelectorAll("#answers .ok").length === 1 && document.querySelectorAll("#answers .replay").length === 1`)
			p.shows("#answers .replay", "replayed: the same answer again")
			p.shows(".without", "without Idemkeeper: up to 2 times")
			p.shows("#operation", "op_")
			p.shows("#payment", "pay_")
			p.pictures("sample-double-" + name)
			p.click("#pay")
			p.await(`document.querySelectorAll("#answers .replay").length === 2`)
			p.pictures("sample-paid-" + name)
			p.click("#other")
			p.shows("#answers .fail", "key-reused")
			p.charged("1 time")
			for _, step := range []string{"received", "lock", "begin", "handler", "settle", "release", "replay", "refused"} {
				p.await(fmt.Sprintf(`!!document.querySelector("#timeline .%s")`, step))
			}
			p.shows("#timeline .refused", "the key belongs to another request (key-reused)")
			if name == "memory" { // a request that is told to come back has a line of its own
				p.shows("#timeline .refused", "the first one still runs (in-progress)")
				p.shows("#answers .again", "in-progress, asked again")
			}
			p.await(`document.querySelector("#sent").innerText === document.querySelectorAll("#answers li").length + " times"`)
			p.click("summary")
			p.shows("#curl", url+"/v1/payments")
			key := eval[string](p, `document.querySelector("#key").innerText`)
			p.shows("#curl", "Idempotency-Key: "+key)
			p.shows("#curl", fmt.Sprintf(`"note":%q`, key))
			p.pictures("sample-other-" + name)
			p.wantNoFaults("409", "422")
		})
	}
}

// A charge that breaks off in its middle is charged once after the next try. The page says what the
// button does, and tells what became of the first try.
func TestSampleCrashes(t *testing.T) {
	for name, tt := range map[string]struct {
		flags         []string
		label         string
		first, second []string // on the timeline
	}{
		"joined": {nil, "Fail mid-charge", []string{"written, not yet committed", "rolled back: nothing was charged"}, []string{"commit together"}},
		"memory": {[]string{"--token-store", "memory"}, "Fail mid-charge", []string{"the ledger was asked: the money has moved"}, []string{"the stored answer"}},
		"process": {[]string{"--demo"}, "Crash mid-charge", []string{"written, not yet committed", "the instance is gone", "another instance takes over",
			"rolled back what was not committed: nothing was charged"}, []string{"commit together"}},
	} {
		t.Run(name, func(t *testing.T) {
			url := testserver.StartSample(t, tt.flags...).URL()
			p := open(t, "")
			p.to(url + "/")
			p.tabTo("#crash")
			p.shows("#crash b", tt.label)
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 1 && !document.querySelector("#answers .wait")`)
			for _, line := range tt.first {
				p.shows("#timeline li", line)
			}
			p.tabTo("#fresh") // around the page
			p.tabTo("#pay")
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 2`)
			p.charged("1 time")
			if name == "process" {
				p.await(`document.querySelector("#answers li:last-child .text").innerText.includes("connection broke")`)
				p.await(`!!document.querySelector("#timeline .handler ~ .crash ~ .restart ~ .ledger ~ .received ~ .settle")`)
			}
			for _, line := range tt.second {
				p.shows("#timeline li", line)
			}
			p.pictures("sample-crashed-" + name)
			p.wantNoFaults("500", "503", "409", "net::ERR_")
		})
	}
}

// A browser sends a POST again by itself if a connection that it reuses breaks. One press is one
// crash all the same.
func TestOnePressIsOneCrash(t *testing.T) {
	sample := testserver.StartSample(t, "--demo")
	p := open(t, "")
	p.to(sample.URL() + "/")
	const presses = 4
	for n := range presses {
		p.shows("#balance", "$")
		p.click("#crash")
		p.await(fmt.Sprintf(`document.querySelectorAll("#answers .fail").length === %d && document.querySelectorAll("#timeline .ledger").length === %[1]d`, n+1))
	}
	out, err := os.ReadFile(sample.Log)
	if err != nil {
		t.Fatal(err)
	}
	if crashes := strings.Count(string(out), "the instance has crashed"); crashes != presses {
		t.Errorf("%d crashes after %d presses, want one for each", crashes, presses)
	}
	p.charged("0 times")
	p.wantNoFaults("net::ERR_")
}

// A paid order only gets its answer again. So a press of the button after a payment takes a new order, says so,
// and crashes that one.
func TestCrashAfterAPaymentTakesANewOrder(t *testing.T) {
	for name, flags := range map[string][]string{"process": {"--demo"}, "memory": {"--token-store", "memory"}} {
		t.Run(name, func(t *testing.T) {
			p := open(t, "")
			p.to(testserver.StartSample(t, flags...).URL() + "/")
			p.click("#pay")
			p.charged("1 time")
			paid := eval[string](p, `document.querySelector("#key").innerText`)
			p.click("#crash")
			p.await(fmt.Sprintf(`document.querySelector("#key").innerText !== %q && document.querySelectorAll("#answers li").length === 1 && !document.querySelector("#answers .wait")`, paid))
			p.shows("#renewed", "A new order, because the one before is paid.")
			fresh := eval[string](p, `document.querySelector("#key").innerText`)
			p.click("#pay") // the crashed order is the same one still
			p.charged("1 time")
			if now := eval[string](p, `document.querySelector("#key").innerText`); now != fresh {
				t.Errorf("the order after the crash is %s, want %s", now, fresh)
			}
			p.pictures("sample-new-order-" + name)
			p.click("#fresh")
			p.await(`!document.querySelector("#renewed").checkVisibility()`)
			p.wantNoFaults("500", "503", "409", "net::ERR_")
		})
	}
}

// A client that follows the link to the page about keys finds its way back.
func TestSampleTellsAboutKeys(t *testing.T) {
	url := testserver.StartSample(t).URL()
	p := open(t, "")
	p.to(url + "/")
	p.click(`nav a[href="/docs/idempotency"]`)
	p.shows("h1", "Idempotency keys")
	p.pictures("sample-keys")
	p.click(`nav a[href="/"]`)
	p.shows("#balance", "$")
	p.wantNoFaults()
}

// An operator leaves the console for the sample's page, signs out, and the browser has forgotten the password. Whoever
// answers its question is signed in.
func TestOperatorLeavesTheConsole(t *testing.T) {
	url := testserver.StartSample(t, "--operators", "ada=secret,bob=secret").URL()
	p := open(t, "")
	p.answers("ada")
	p.to(url + "/console/health")
	p.answers("")
	p.shows(".who", "Signed in as ada")
	p.pictures("console-leave")
	p.click(`.bar nav a[href="/"]`)
	p.shows("#balance", "$")
	p.to(url + "/console/")
	p.click(".out button")
	p.shows("main", "You are signed out.")
	p.pictures("console-signed-out")
	p.click("main a")
	p.shows("main", "Sign in as an operator.")
	p.answers("ada")
	p.to(url + "/console/")
	p.shows(".who", "Signed in as ada")
	p.answers("bob")
	p.click(".out button")
	p.shows(".who", "Signed in as bob")
	p.wantNoFaults("401")
}

// The loop of a new operator, twice: a charge ends in doubt, the console has found its payment, the
// operator settles it, and the customer gets the answer of the handler.
func TestDoubtOfTheSampleIsSettled(t *testing.T) {
	url := testserver.StartSample(t, "--token-store", "memory", "--resolver", "none", "--operators", "ada=secret").URL()
	p := open(t, "")
	p.to(url + "/")
	var orders, operations, paid []string
	for range 2 {
		p.click("#fresh")
		p.await(`!document.querySelector("#answers li")`)
		p.click("#crash")
		p.await(`!!document.querySelector("#answers .fail")`)
		p.click("#pay")
		p.await(`document.querySelectorAll("#answers .fail").length === 2`)
		p.charged("1 time")
		p.shows("#payment", "pay_") // which an operator looks for
		orders = append(orders, eval[string](p, `location.href`))
		operations = append(operations, eval[string](p, `document.querySelector("#operation").innerText`))
		paid = append(paid, eval[string](p, `document.querySelector("#payment").innerText.match(/pay_[0-9a-f]+/)[0]`))
	}
	p.pictures("sample-doubt")
	p.to(strings.Replace(url, "//", "//ada:secret@", 1) + eval[string](p, `document.querySelector("header a:last-child").pathname`))
	p.await(`document.querySelectorAll("a.op").length === 2`)
	for i, order := range orders {
		p.to(url + "/console/") // without the password in the address
		p.await(`document.body.innerText.includes("such as merchant_demo")`)
		began := time.Now()
		step := func(what string) {
			t.Logf("order %d: %s after %v", i+1, what, time.Since(began).Round(time.Millisecond))
		}
		p.fill("#find-key", order[strings.Index(order, "#")+1:])
		p.fill("#find-scope", "merchant_demo"+kb.Enter)
		p.await(`!!document.querySelector("details.found[open]")`)
		p.shows("h1", operations[i])
		p.shows(".settle .says", paid[i]+": 12.50 USD from alice to bob, of merchant_demo")
		step("the key that the customer names is found, and its payment")
		if strings.Contains(eval[string](p, `document.body.innerText`), "idemctl") {
			t.Error("the page has a command for a store that idemctl cannot reach")
		}
		if eval[bool](p, `!!document.querySelector("details.not-applied")`) {
			t.Error("the page offers to run a payment again that the ledger has")
		}
		p.pictures("sample-found")
		confirm := eval[string](p, `document.querySelector('label[for="found-confirm"] code').innerText`)
		p.fill("#found-reason", "Ticket 4711")
		p.fill("#found-confirm", confirm+kb.Enter)
		p.await(`document.activeElement.matches(".done") && document.activeElement.innerText.includes("the same key again")`)
		step("the attempt is settled")
		if i == 0 {
			p.pictures("sample-decided")
		}
		p.to(order)
		p.await(`!!document.querySelector("#timeline .doubt")`) // the same order is there again
		p.click("#pay")
		p.await(fmt.Sprintf(`document.querySelector("#answers .replay .text").innerText.startsWith("the stored answer: payment " + %q)`, paid[i][:14]))
		step("the customer has the answer")
		p.charged("1 time")
		p.shows("#timeline .resolve", "ada decided: the money has moved")
	}
	p.pictures("sample-settled")
	p.wantNoFaults("500", "503", "409")
}
