package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// rules are the alerts of a file of Prometheus.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) (all []rule) {
	t.Helper()
	var r rules
	decode(t, "alerts.yaml", &r)
	for _, g := range r.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("alerts.yaml has no alert")
	}
	return all
}

// decode reads a YAML file and refuses unknown fields.
func decode(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(read(t, file), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dashboard returns the expressions of the dashboard.
func dashboard(t *testing.T) (exprs []string) {
	t.Helper()
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	if err := json.Unmarshal(read(t, "grafana/idemkeeper.json"), &d); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range d.Panels {
		if seen[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q is twice there, has no place, or shows nothing", p.ID, p.Title)
		}
		seen[p.ID] = true
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		exprs = append(exprs, v.Query)
	}
	if len(exprs) < 10 || d.UID == "" {
		t.Errorf("the dashboard has %d expressions and the UID %q", len(exprs), d.UID)
	}
	return exprs
}

var (
	ourMetric = regexp.MustCompile(`\bidemkeeper_[a-z_]+`)
	ourLabel  = regexp.MustCompile(`\b(idemkeeper_[a-z]+|error_type)\s*(=~|=)\s*"([^"]*)"`)
)

// TestMetricsExist compares the metrics, labels and values that rules and dashboard name with
// those of the running sample.
func TestMetricsExist(t *testing.T) {
	names, labels := scrape(t)
	values := map[string][]string{"error_type": {""}, "idemkeeper_age": {"under-1m", "under-10m", "under-1h", "under-1d", "over-1d"}, "idemkeeper_event": {}, "idemkeeper_step": {}, "idemkeeper_outcome": {},
		"idemkeeper_state": {"pending", "unknown"}, "idemkeeper_result": {"done", "failed"}, "idemkeeper_reason": {"newer-build", "corrupt"},
		"idemkeeper_route": {"$route"}}
	for e := telemetry.EventType(0); e.String() != "event"; e++ {
		values["idemkeeper_event"] = append(values["idemkeeper_event"], e.String())
	}
	for s := telemetry.Step(0); s.String() != "step"; s++ {
		values["idemkeeper_step"] = append(values["idemkeeper_step"], s.String())
	}
	for o := telemetry.Outcome(0); o.String() != "outcome"; o++ {
		values["idemkeeper_outcome"] = append(values["idemkeeper_outcome"], o.String())
	}
	exprs := dashboard(t)
	for _, a := range alerts(t) {
		exprs = append(exprs, a.Expr)
	}
	for _, expr := range exprs {
		for _, m := range ourLabel.FindAllStringSubmatch(expr, -1) {
			for value := range strings.SplitSeq(m[3], "|") {
				if m[1] == "error_type" && idem.Code(value).Known() {
					continue
				}
				if !slices.Contains(values[m[1]], value) {
					t.Errorf("%s: there is no %s %q", expr, m[1], value)
				}
			}
		}
		for _, name := range ourMetric.FindAllString(expr, -1) {
			if !names[name] && !labels[name] {
				t.Errorf("%s: the sample has no metric or label %s", expr, name)
			}
		}
	}
}

// scrape starts the sample, lets it pay twice with one key, and returns the names of its
// metrics and labels.
func scrape(t *testing.T) (names, labels map[string]bool) {
	t.Helper()
	url := testserver.StartSample(t).URL()
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/payments",
			strings.NewReader(`{"from":"alice","to":"bob","amount":1,"currency":"USD","note":""}`))
		req.Header = http.Header{"Authorization": {"Bearer demo"}, "Idempotency-Key": {"k"}}
		if status, body := answer(t, req); status != http.StatusCreated {
			t.Fatalf("payment = %d %s", status, body)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	names, labels = map[string]bool{}, map[string]bool{"idemkeeper_outcome": true}
	for {
		_, body := answer(t, req)
		for line := range strings.Lines(string(body)) {
			if name := ourMetric.FindString(line); strings.HasPrefix(line, name) {
				names[name] = true
			}
			for _, m := range ourLabel.FindAllStringSubmatch(line, -1) {
				labels[m[1]] = true
			}
		}
		if names["idemkeeper_swept_records_total"] { // after the first pass of the sweeper
			return names, labels
		}
	}
}

func answer(t *testing.T, req *http.Request) (status int, body []byte) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

// TestPrometheusAcceptsTheFiles runs Prometheus's own checks, and the unit tests of the rules.
func TestPrometheusAcceptsTheFiles(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"check", "config", "prometheus.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Fatal("promtool is missing: make servers installs Debian's package prometheus")
		}
		if err != nil {
			t.Errorf("promtool %s = %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestEveryAlertHasAPage wants a page of the runbook for each alert, in one style.
func TestEveryAlertHasAPage(t *testing.T) {
	pages := map[string]string{}
	for page := range strings.SplitSeq(string(read(t, "runbook.md")), "\n## ") {
		name, text, _ := strings.Cut(page, "\n")
		pages[name] = text
	}
	for _, a := range alerts(t) {
		if a.Labels["severity"] != "page" && a.Labels["severity"] != "ticket" || a.Annotations["summary"] == "" {
			t.Errorf("%s has labels %v and annotations %v", a.Alert, a.Labels, a.Annotations)
		}
		if want := "runbook.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want {
			t.Errorf("%s leads to %s, want %s", a.Alert, a.Annotations["runbook"], want)
		}
		for _, part := range []string{"**It means**", "**Look at**", "**Settle**"} {
			if !strings.Contains(pages[a.Alert], part) {
				t.Errorf("the page of %s has no %s", a.Alert, part)
			}
		}
		delete(pages, a.Alert)
	}
	for name := range pages {
		if strings.HasPrefix(name, "Idemkeeper") {
			t.Errorf("the runbook has a page for %s, which is no alert", name)
		}
	}
	if !bytes.Contains(read(t, "runbook.md"), []byte("(alerts.yaml)")) {
		t.Error("the runbook does not lead to the rules")
	}
}
