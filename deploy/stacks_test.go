package deploy

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestComposeFile loads the file as Compose does, with its schema, and looks at what it names.
func TestComposeFile(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithInterpolation(true), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"zk1", "zk2", "zk3", "redis", "redis-replica", "sentinel1", "sentinel2", "sentinel3", "postgres",
		"payments-1", "payments-2", "payments-3", "proxy", "prometheus", "grafana"} {
		if _, err := project.GetService(name); err != nil {
			t.Error(err)
		}
	}
	known := flags(t)
	for _, s := range project.Services {
		for name := range s.DependsOn {
			if _, err := project.GetService(name); err != nil {
				t.Errorf("%s depends on %s: %v", s.Name, name, err)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == "bind" {
				if _, err := os.Stat(v.Source); err != nil {
					t.Errorf("%s: %v", s.Name, err)
				}
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s opens port %s to other machines, and the file has its passwords", s.Name, port.Published)
			}
		}
		if !strings.HasPrefix(s.Name, "payments-") {
			continue
		}
		for name, value := range s.Environment {
			wantVariable(t, s.Name, name, known)
			for host := range strings.FieldsFuncSeq(*value, func(r rune) bool { return strings.ContainsRune("/,@", r) }) {
				if host, _, ok := strings.Cut(host, ":"); ok && !slices.Contains([]string{"redis+sentinel", "postgres", "payments"}, host) {
					if _, err := project.GetService(host); err != nil {
						t.Errorf("%s=%s names %s: %v", name, *value, host, err)
					}
				}
			}
		}
	}
	for _, file := range []string{"haproxy.cfg", "prometheus.yaml"} {
		for _, name := range []string{"payments-1", "payments-2", "payments-3"} {
			if !bytes.Contains(read(t, file), []byte(name+":8080")) {
				t.Errorf("%s does not name %s:8080", file, name)
			}
		}
	}
}

// TestHAProxyAcceptsTheFile runs HAProxy's own check. It cannot resolve the names of the instances
// here, and that is a warning.
func TestHAProxyAcceptsTheFile(t *testing.T) {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path = "/usr/sbin/haproxy" // Debian's place is not in everybody's PATH
	}
	out, err := exec.CommandContext(t.Context(), path, "-c", "-f", "haproxy.cfg").CombinedOutput()
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatal("haproxy is missing: make servers installs Debian's package haproxy")
	}
	if err != nil {
		t.Errorf("haproxy -c = %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "[WARNING]") && !strings.Contains(line, "could not resolve address 'payments-") {
			t.Errorf("haproxy -c: %s", line)
		}
	}
}

// TestGrafanaFindsItsFiles reads the provisioning as Grafana does, with unknown fields refused, and
// compares it with the mounts of Compose and with the dashboard.
func TestGrafanaFindsItsFiles(t *testing.T) {
	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool
		}
	}
	var dashboards struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	decode(t, "grafana/datasource.yaml", &sources)
	decode(t, "grafana/dashboards.yaml", &dashboards)
	if sources.APIVersion != 1 || len(sources.Datasources) != 1 || dashboards.APIVersion != 1 || len(dashboards.Providers) != 1 {
		t.Fatalf("the provisioning is %+v and %+v, want one of each in version 1", sources, dashboards)
	}
	source, provider := sources.Datasources[0], dashboards.Providers[0]
	compose := string(read(t, "compose.yaml"))
	for _, mount := range []string{"./grafana/datasource.yaml:/etc/grafana/provisioning/datasources/", "./grafana/dashboards.yaml:/etc/grafana/provisioning/dashboards/",
		"./grafana/idemkeeper.json:" + provider.Options.Path + "/"} {
		if !strings.Contains(compose, mount) {
			t.Errorf("compose.yaml does not mount %s", mount)
		}
	}
	if provider.Type != "file" || source.Type != "prometheus" || source.Access != "proxy" || source.URL != "http://prometheus:9090" {
		t.Errorf("the provisioning is %+v and %+v", source, provider)
	}
	uids := regexp.MustCompile(`"uid": "([^"]*)"`).FindAllSubmatch(read(t, "grafana/idemkeeper.json"), -1)
	for _, m := range uids {
		if uid := string(m[1]); uid != source.UID && uid != "idemkeeper" { // the dashboard's own
			t.Errorf("the dashboard asks the data source %q, and there is %q", uid, source.UID)
		}
	}
	if len(uids) < 10 {
		t.Errorf("the dashboard names %d data sources", len(uids))
	}
}

// flags is what the sample says of its flags, where their variables come from.
func flags(t *testing.T) string {
	t.Helper()
	return string(read(t, "../example-payments/config.go"))
}

func wantVariable(t *testing.T, who, name, known string) {
	t.Helper()
	flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "PAYMENTS_")), "_", "-")
	if !strings.HasPrefix(name, "PAYMENTS_") || !strings.Contains(known, `"`+flag+`"`) {
		t.Errorf("%s sets %s, and the sample has no flag --%s", who, name, flag)
	}
}

// TestKubernetesObjects decodes each object into its type and refuses unknown fields.
func TestKubernetesObjects(t *testing.T) {
	var deployment appsv1.Deployment
	var service corev1.Service
	var config corev1.ConfigMap
	var secret corev1.Secret
	var budget policyv1.PodDisruptionBudget
	kinds := map[string]any{"Deployment": &deployment, "Service": &service, "ConfigMap": &config, "Secret": &secret, "PodDisruptionBudget": &budget}
	for doc := range bytes.SplitSeq(read(t, "kubernetes.yaml"), []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		into := kinds[kind.Kind]
		if into == nil {
			t.Fatalf("the test does not know %s, or it comes twice", kind.Kind)
		}
		delete(kinds, kind.Kind)
		if err := yaml.UnmarshalStrict(doc, into); err != nil {
			t.Errorf("%s: %v", kind.Kind, err)
		}
	}
	if len(kinds) > 0 {
		t.Errorf("kubernetes.yaml lacks %v", kinds)
	}
	pod := deployment.Spec.Template
	if *deployment.Spec.Replicas != 3 || len(pod.Spec.Containers) != 1 {
		t.Fatalf("the deployment is %+v", deployment.Spec)
	}
	for _, selector := range []map[string]string{deployment.Spec.Selector.MatchLabels, service.Spec.Selector, budget.Spec.Selector.MatchLabels} {
		if selector["app"] == "" || selector["app"] != pod.Labels["app"] {
			t.Errorf("a selector %v does not select pods with %v", selector, pod.Labels)
		}
	}
	known := flags(t)
	for _, env := range []map[string]string{config.Data, secret.StringData} {
		for name := range env {
			wantVariable(t, "kubernetes.yaml", name, known)
		}
	}
	c, ports := pod.Spec.Containers[0], map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	for _, p := range service.Spec.Ports {
		if !ports[p.TargetPort.StrVal] {
			t.Errorf("the service leads to %v, which the container does not have", p.TargetPort)
		}
	}
	if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("probes: %v and %v", c.ReadinessProbe.HTTPGet, c.LivenessProbe.HTTPGet)
	}
	if grace := *pod.Spec.TerminationGracePeriodSeconds; grace <= 32 {
		t.Errorf("the pod has %d s to stop, and the sample takes up to 32 s", grace)
	}
	if c.Resources.Limits.Cpu().Sign() != 0 {
		t.Error("a limit of processor time pauses handlers past their leases")
	}
}

// TestDockerfile parses the instructions as BuildKit does.
func TestDockerfile(t *testing.T) {
	parsed, err := parser.Parse(bytes.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	if len(stages) != 2 || !strings.Contains(last.BaseName, "distroless") || !strings.HasSuffix(last.BaseName, ":nonroot") {
		t.Errorf("the last of %d stages is from %s, want a distroless image without root", len(stages), last.BaseName)
	}
	for _, dir := range []string{"../example-payments", "../cmd/idemctl"} {
		if _, err := os.Stat(dir); err != nil || !bytes.Contains(read(t, "Dockerfile"), []byte(strings.Replace(dir, "..", ".", 1))) {
			t.Errorf("the Dockerfile does not build %s (%v)", dir, err)
		}
	}
}
