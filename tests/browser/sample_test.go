package browser

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// charged waits until the page shows how often alice has paid, with nothing on its way.
func (p *tab) charged(times string) {
	p.Helper()
	p.await(fmt.Sprintf(`document.querySelector("#charged").innerText === %q && !document.querySelector("#answers .wait")`, times))
}

func TestSampleChargesOnce(t *testing.T) {
	for name, flags := range map[string][]string{"joined": nil, "memory": {"--token-store", "memory", "--processor-latency", "300ms"}} {
		t.Run(name, func(t *testing.T) {
			url := testserver.StartSample(t, flags...).URL()
			p := open(t, "")
			p.to(url + "/")
			p.await(`document.querySelector("#balance").innerText.startsWith("$")`)
			if name == "joined" {
				p.pictures("sample-first")
			}
			p.click("#double")
			p.await(`document.querySelectorAll("#answers li").length === 2`)
			p.charged("1 time")
			p.await(`document.querySelectorAll("#answers .ok").length === 1 && document.querySelectorAll("#answers .replay").length === 1`)
			p.click("#pay")
			p.await(`document.querySelectorAll("#answers .replay").length === 2`)
			p.click("#other")
			p.await(`document.querySelector("#answers .fail .text").innerText.includes("key-reused")`)
			p.charged("1 time")
			for _, step := range []string{"received", "lock", "begin", "handler", "settle", "release", "replay", "refused"} {
				p.await(fmt.Sprintf(`!!document.querySelector("#timeline .%s")`, step))
			}
			p.pictures("sample-paid-" + name)
			p.wantNoFaults("409", "422")
		})
	}
}

// A charge that breaks off in its middle is charged once after the next try.
func TestSampleCrashes(t *testing.T) {
	for name, flags := range map[string][]string{"joined": nil, "memory": {"--token-store", "memory"}, "process": {"--demo"}} {
		t.Run(name, func(t *testing.T) {
			url := testserver.StartSample(t, flags...).URL()
			p := open(t, "")
			p.to(url + "/")
			p.tabTo("#crash")
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 1 && !document.querySelector("#answers .wait")`)
			p.tabTo("#fresh") // around the page
			p.tabTo("#pay")
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 2`)
			p.charged("1 time")
			if name == "process" {
				p.await(`document.querySelector("#answers li:last-child .text").innerText.includes("connection broke")`)
				p.await(`!!document.querySelector("#timeline .handler ~ .crash")`)
			}
			p.await(`!!document.querySelector("#timeline .settle, #timeline .replay")`)
			p.pictures("sample-crashed-" + name)
			p.wantNoFaults("500", "503", "409", "net::ERR_")
		})
	}
}

// The loop of a new operator: a charge ends in doubt, the console has it, the operator settles it, and
// the customer gets the answer.
func TestDoubtOfTheSampleIsSettled(t *testing.T) {
	url := testserver.StartSample(t, "--token-store", "memory", "--resolver", "none", "--operators", "ada=secret").URL()
	p := open(t, "")
	p.to(url + "/")
	p.click("#crash")
	p.await(`!!document.querySelector("#answers .fail")`)
	p.click("#pay")
	p.await(`document.querySelectorAll("#answers .fail").length === 2`)
	p.charged("1 time")
	order := eval[string](p, `location.href`)
	p.pictures("sample-doubt")
	p.to(strings.Replace(url, "//", "//ada:secret@", 1) + eval[string](p, `document.querySelector("header a:last-child").pathname`))
	p.await(`document.querySelectorAll("a.op").length === 1`)
	p.to(url + "/console/") // without the password in the address
	p.await(`document.body.innerText.includes("such as merchant_demo")`)
	began := time.Now()
	step := func(what string) { t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond)) }
	p.fill("#find-key", order[strings.Index(order, "#")+1:])
	p.fill("#find-scope", "merchant_demo"+kb.Enter)
	p.await(`!!document.querySelector("details.applied")`)
	step("the key that the customer names is found")
	look := eval[string](p, `document.querySelector("pre.command").innerText`) // for a shell
	if strings.Contains(eval[string](p, `document.body.innerText`), "idemctl") {
		t.Error("the page has a command for a store that idemctl cannot reach")
	}
	out, err := exec.CommandContext(t.Context(), "bash", "-c", strings.Replace(look, "API_KEY_OF_THE_MERCHANT", "demo", 1)).Output()
	if err != nil || !strings.Contains(string(out), `"id":"pay_`) {
		t.Fatalf("%s: %v, %s, want the payment", look, err, out)
	}
	step("the payment is in the ledger")
	p.click("details.applied summary")
	confirm := eval[string](p, `document.querySelector('label[for="applied-confirm"] code').innerText`)
	p.fill("#s-body", `{"id":"pay_by_hand"}`)
	p.fill("#applied-reason", "The ledger has the payment")
	p.fill("#applied-confirm", confirm)
	p.click("details.applied button")
	p.await(`document.activeElement.matches(".done")`)
	step("the attempt is settled")
	p.to(order)
	p.await(`!!document.querySelector("#timeline .doubt")`) // the same order is there again
	p.click("#pay")
	p.await(`document.querySelector("#answers .replay .text").innerText.includes("pay_by_hand")`)
	step("the customer has the answer")
	p.charged("1 time")
	p.wantNoFaults("500", "503", "409")
}
