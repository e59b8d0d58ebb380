package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// An operator ticks some records and settles them, then settles all that a filter selects, and watches.
func TestOperatorSettlesMany(t *testing.T) {
	s := startService(t)
	const n = 120
	s.inDoubt(0, n)
	s.found = console.Found{Says: "pay_1: 12.50 USD from alice to bob, of merchant_demo",
		Answer: idem.Response{Status: 201, Body: []byte(`{"id":"pay_1","status":"succeeded"}`)}}
	p := open(t, "ada")
	p.to(s.url)
	p.await(`document.querySelectorAll("input[name=pick]").length === 25`)
	p.shows("tbody tr:first-child .fact", "Found pay_1: 12.50 USD from alice")
	p.pictures("console-many-list")
	p.click("tbody tr:nth-child(2) input[name=pick]")
	p.click("tbody tr:nth-child(3) .pick .state") // its label
	p.click("button[value=ticked]")
	p.await(`location.pathname.includes("/select/")`)
	p.shows("h1", "Settle 2 records on 1 route")
	p.click("details.first summary")
	p.pictures("console-many-few")
	p.click("details.found summary")
	p.fill("#found-reason", "Bank's file of 2 May, ticket 4711")
	p.fill("#found-confirm", "2"+kb.Enter)
	p.await(`document.querySelector("h1").innerText === "2 of 2 records are settled"`)
	p.pictures("console-many-few-settled")
	settled := 0
	for i := range n {
		if s.record(i).State == driver.StateCompleted {
			settled++
		}
	}
	if settled != 2 {
		t.Errorf("%d records are settled, want 2", settled)
	}

	s.found = console.Found{Nothing: true}
	p.to(s.url + "?kept=other&from=2020-01-01")
	p.shows("tbody tr:first-child .fact", "Found nothing, which is no proof")
	if got := eval[string](p, `document.querySelector("#f-from").value`); got != "2020-01-01T00:00" {
		t.Errorf("the filter has the time %q", got)
	}
	p.pictures("console-many-filter")
	p.click("button[value=filter]")
	p.await(`location.pathname.includes("/select/")`)
	p.click("details.not-applied summary")
	p.fill("#not-applied-reason", "The gateway refused all of that minute, ticket 4712")
	p.fill("#not-applied-confirm", "again 2")
	p.pictures("console-many-confirm")
	if eval[bool](p, `document.querySelector("#not-applied-confirm").checkValidity()`) {
		t.Error("the page takes a wrong confirmation for a right one")
	}
	p.click("details.applied summary")
	p.pictures("console-many-answer")
	p.click("details.not-applied summary")
	count := eval[string](p, `document.querySelector('label[for="not-applied-confirm"] code').innerText`)
	eval[string](p, `document.querySelector("#not-applied-confirm").value = ""`)
	s.gate = make(chan struct{})
	p.fill("#not-applied-confirm", count+kb.Enter)
	p.await(`document.readyState === "complete" && !!document.querySelector("progress")`)
	eval[string](p, `(window.stop(), "")`) // or the page loads again while we look at it
	p.pictures("console-many-running")
	p.to(eval[string](p, `location.href`))
	close(s.gate)
	p.await(`document.querySelector("h1").innerText.endsWith("records are settled")`) // the page loads again by itself
	p.pictures("console-many-done")
	p.to(s.url + "runs")
	p.pictures("console-many-runs")
	p.wantNoFaults()

	// Without a network of its own, the page of a run that is not here says what to do.
	p.to(s.url + "runs/ABC")
	p.shows("h1", "This run is not known here")
	p.wantNoFaults("404")
}
